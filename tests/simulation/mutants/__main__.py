"""``python -m tests.simulation.mutants``: rules taken out of the product, one at a time, and what the scenes see of it.

A mutant that is not noticed, that only crashes, or whose edit does not apply is a failure of the simulator.
"""

import logging
import sys
import time

import click

from tests.simulation.mutants.lives import LIVES
from tests.simulation.mutants.named import MUTANTS, Mutant, caught, clean, played
from tests.simulation.mutants.scenes import SCENES


@click.command()
@click.option("--only", default="", help="Mutants whose name contains it.")
@click.option(
    "--scene", default="", help="Scenes whose name contains it, instead of each mutant's own."
)
@click.option(
    "--clean", "without", is_flag=True, help="Play the scenes as they are, and no mutant."
)
@click.option("--verbose", is_flag=True, help="Say what happens.")
def main(only: str, scene: str, *, without: bool, verbose: bool) -> None:
    """Play each mutant's scene with its edits, and without.

    Example: python -m tests.simulation.mutants --only sync
    """
    logging.disable(logging.CRITICAL)
    say = click.echo if verbose else None
    failed: list[str] = []
    if without:
        for name in (each for each in (*SCENES, *LIVES) if scene in each):
            began_s = time.process_time()
            said = clean(name, say)
            failed += [name] * bool(said)
            click.echo(f"{name}: {time.process_time() - began_s:.1f} s of CPU, {said or 'clean'}")
    for mutant in () if without else (each for each in MUTANTS if only in each.name):
        scenes = [each for each in (*SCENES, *LIVES) if scene in each] if scene else [mutant.scene]
        failed += [mutant.name] * (not any(_noticed(mutant, each) for each in scenes))
    click.echo(f"not as they should be: {failed}")
    sys.exit(1 if failed else 0)


def _noticed(mutant: Mutant, scene: str) -> bool:
    try:
        said = played(mutant, scene)
    except Exception as error:  # noqa: BLE001 - whatever it is, this mutant only crashes, and the next one is played
        click.echo(f"{mutant.name} ({mutant.rule}), {scene}: CRASHED, {error!r}")
        return False
    noticed = caught(mutant, said) and not clean(scene)
    click.echo(f"{mutant.name} ({mutant.rule}), {scene}: {'' if noticed else 'NOT NOTICED, '}"
               f"{(*said, 'nothing')[0][:200]}")  # fmt: skip
    return noticed


if __name__ == "__main__":
    main()
