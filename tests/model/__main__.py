"""``python -m tests.model``: look at every state of the model's instances, and say how many there are.

    python -m tests.model                                # what every test run does
    python -m tests.model --instance "shard crash" --large
    python -m tests.model --mutants                      # each rule left out, with the shortest trace to the damage

The exit code is 0 only where nothing is wrong, and every mutant breaks what it must.
"""

import sys

import click

from tests.model.explore import Explored, explore
from tests.model.instances import INSTANCES, MUTANTS


@click.command()
@click.option(
    "--instance", "names", multiple=True, type=click.Choice(list(INSTANCES)), help="Only this one."
)
@click.option("--large", is_flag=True, help="The large form: minutes, and gigabytes.")
@click.option("--mutants", is_flag=True, help="Leave out each rule in turn.")
def main(names: tuple[str, ...], *, large: bool, mutants: bool) -> None:
    """Explore the instances of the model."""
    chosen = [name for name in INSTANCES if not names or name in names]
    right = [_mutants(name) if mutants else _clean(name, large=large) for name in chosen]
    sys.exit(0 if all(right) else 1)


def _clean(name: str, *, large: bool) -> bool:
    instance = INSTANCES[name]
    world = (instance.large if large else instance.small)(frozenset())
    result = explore(world, liveness=instance.liveness)
    _say(name, result)
    return result.found is None


def _mutants(name: str) -> bool:
    right = True
    for mutant in MUTANTS:
        if mutant.instance == name:
            world = INSTANCES[name].small(frozenset({mutant.name}))
            result = explore(world, liveness=mutant.breaks == "stuck")
            _say(f"{name} without {mutant.name!r}, must break {mutant.breaks!r}", result)
            right = right and result.found is not None and result.found.name == mutant.breaks
    return right


def _say(name: str, result: Explored) -> None:
    click.echo(
        f"{name}: {result.states} states, {result.transitions} transitions, depth {result.depth},"
        f" {result.seconds:.1f} s, {'nothing wrong' if result.found is None else 'WRONG'}"
    )
    if result.found is not None:
        click.echo(f"  {result.found.text}, after")
        for number, step in enumerate(result.found.trace, 1):
            click.echo(f"  {number:3} {step}")


if __name__ == "__main__":
    main()
