"""How commands print: tables for people, JSON for programs, progress, and the exit codes.

What goes to standard output with `-o json` is one JSON document; progress and errors go to stderr. A table is never
wrapped within a cell: where the terminal is too narrow for it, each row is printed as lines of name and value; beside a
pipe there is no width to keep to. Control characters of data never reach a terminal.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import click

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_AUTH: Final = 4
EXIT_UNKNOWN_OUTCOME: Final = 5

PROGRESS_AFTER_S: Final = 1.0
_GAP: Final = "  "

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Add ``-o table|json`` to a command; it arrives as `output`."""
    option = click.option(
        "-o", "--output", "output", type=click.Choice(["table", "json"]), default="table",
        show_default=True, help="How to print.",
    )  # fmt: skip
    return option(command)


def print_rows(rows: Sequence[Mapping[str, Any]], output: str, *, title: str = "") -> None:
    """Print rows that share their keys; numbers are aligned to the right."""
    if output == "json":
        print_json(list(rows))
        return
    if not rows:
        click.echo(f"(no {title or 'rows'})")
        return
    columns = [
        key.replace("_", " ") + ("#" if _are_numbers([row[key] for row in rows]) else "")
        for key in rows[0]
    ]
    print_table(title, columns, [list(row.values()) for row in rows])


def print_answered(
    rows: Sequence[Mapping[str, Any]], output: str, *, acting: bool | None, title: str = ""
) -> None:
    """Print rows that a region answered; in JSON each says whether that region acts, where that is known."""
    if output == "json" and acting is not None:
        rows = [{**row, "acting": acting} for row in rows]
    print_rows(rows, output, title=title)


def print_object(value: Mapping[str, Any], output: str, *, title: str = "") -> None:
    """Print one thing: a line per key, or a JSON object."""
    if output == "json":
        print_json(value)
        return
    print_pairs(title, [(key.replace("_", " "), item) for key, item in value.items()])


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends with ``#`` are numbers, aligned to the right."""
    names = [column.rstrip("#") for column in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if title:
        click.echo(printable(title))
    if not sys.stdout.isatty() or sum(widths) + len(_GAP) * (len(widths) - 1) <= _columns():
        right = [column.endswith("#") for column in columns]
        click.secho(_line(names, widths, right), bold=True)
        for row in cells:
            click.echo(_line(row, widths, right))
        return
    for number, row in enumerate(cells):
        if number:
            click.echo("")
        print_pairs("", [(name, cell) for name, cell in zip(names, row, strict=True) if cell])


def print_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line, aligned."""
    listed = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    if title:
        click.echo(printable(title))
    for name, value in listed:
        click.echo(f"  {name.ljust(width)}  {value}".rstrip())


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, default=str))


def fail(text: str, exit_code: int = EXIT_FAILED) -> NoReturn:
    """Print `text` to stderr and end with `exit_code`."""
    click.echo(f"tidemark: {printable(text)}", err=True)
    sys.exit(exit_code)


def confirmed(question: str) -> bool:
    """Ask on standard error; ends the command where nobody is there to answer."""
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        fail("nothing was changed: nobody is here to answer. --yes goes on without asking")


def agreed(question: str) -> None:
    """Ask so, and end the command where the answer is no."""
    if not confirmed(question):
        raise click.Abort


def printable(text: object) -> str:
    """Return `text` without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in str(text))


class Progress:
    """Says on standard error what is going on, once a command has taken longer than a second."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Start the clock; `quiet` prints nothing at all."""
        self._started_s = time.monotonic()
        self._quiet = quiet
        self._last = ""

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the command began."""
        return time.monotonic() - self._started_s

    def say(self, what: str) -> None:
        """Print `what` if it is new and a second has passed."""
        if self._quiet or what == self._last or self.elapsed_s < PROGRESS_AFTER_S:
            return
        self._last = what
        click.echo(f"  {self.elapsed_s:6.1f} s  {printable(what)}", err=True)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        value = ", ".join(str(item) for item in value)
    return printable(value).replace("\n", " ")


def _are_numbers(values: Iterable[object]) -> bool:
    """Return whether a column is one of numbers, though some may be missing."""
    given = [value for value in values if value is not None]
    return bool(given) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in given
    )


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if numeric else cell.ljust(width)
        for cell, width, numeric in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _columns() -> int:
    return shutil.get_terminal_size().columns
