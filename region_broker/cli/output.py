"""How commands print: a table for people, JSON for programs, and the exit codes.

INV-O1  what goes to standard output with `-o json` is one JSON document; progress and errors go to stderr
Rich is imported only when a table is printed: the command line starts in well under 150 ms.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import click

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_AUTH: Final = 4
EXIT_UNKNOWN_OUTCOME: Final = 5

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Add ``-o table|json`` to a command; it arrives as `output`."""
    option = click.option(
        "-o", "--output", "output", type=click.Choice(["table", "json"]), default="table",
        show_default=True, help="How to print.",
    )  # fmt: skip
    return option(command)


def print_rows(rows: Sequence[Mapping[str, Any]], output: str, *, title: str = "") -> None:
    """Print rows that share their keys."""
    if output == "json":
        print_json(list(rows))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if not rows:
        console.print(f"(no {title or 'rows'})", highlight=False)
        return
    table = Table(title=title or None, box=None, title_justify="left", header_style="bold")
    for key in rows[0]:
        table.add_column(key.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)


def print_object(value: Mapping[str, Any], output: str, *, title: str = "") -> None:
    """Print one thing: a line per key, or a JSON object."""
    if output == "json":
        print_json(value)
        return
    print_rows([{"": key.replace("_", " "), title: item} for key, item in value.items()], "table")


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, default=str))


def fail(text: str, exit_code: int = EXIT_FAILED) -> NoReturn:
    """Print `text` to stderr and end with `exit_code`."""
    click.echo(f"tidemark: {text}", err=True)
    sys.exit(exit_code)


def _cell(value: object) -> str:
    from rich.markup import escape

    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value))
    return escape("".join(char if char.isprintable() else "·" for char in str(value)))
