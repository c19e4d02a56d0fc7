"""Every command helps itself: what it does, an example, and what each option means."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from region_broker.cli.main import main


def walk(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from walk(found, (*path, name))


COMMANDS = [pytest.param(path, id="-".join(path) or "tidemark") for path, _ in walk(main, ())]


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_an_example_and_explains_every_option(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert "Example" in result.output
    assert "tidemark " + " ".join(path) in " ".join(result.output.split("Example", 1)[1].split())
    command = dict(walk(main, ()))[path]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.name


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_options_are_usage_errors(path: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, [*path, "--nonsense"]).exit_code == 2


def test_help_imports_nothing_heavy() -> None:
    """Start-up under 150 ms holds while none of these is imported for a help text."""
    heavy = (
        "confluent_kafka",
        "aiohttp",
        "sqlalchemy",
        "kio",
        "rich",
        "numpy",
        "pyspark",
        "asyncio",
    )
    probe = (
        "import sys; from region_broker.cli.main import main\n"
        "from click.testing import CliRunner\n"
        "for words in ([], ['region'], ['txn'], ['topic'], ['dev']):\n"
        "    assert CliRunner().invoke(main, [*words, '--help']).exit_code == 0, words\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
