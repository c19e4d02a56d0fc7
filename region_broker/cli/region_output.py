"""What the region commands print beyond rows: named values, wide tables, progress.

INV-CO1  data goes to standard output, everything else (progress, warnings, errors) to standard error
INV-CO2  control characters of data never reach a terminal

rich is imported only where a table is printed: it costs more than a command may take to start.
Not here: exit codes and JSON (`output`).
"""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

import click

PROGRESS_AFTER_S: Final = 1.0
PIPE_COLUMNS: Final = 200


def printable(text: object) -> str:
    """Return `text` without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in str(text))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends with ``#`` are numbers, aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold", box=None)
    for column in columns:
        table.add_column(
            column.rstrip("#"),
            justify="right" if column.endswith("#") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    # Beside a pipe there is no width to keep to.
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(table)


def print_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line, aligned."""
    listed = [(name, printable(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    if title:
        click.echo(printable(title))
    for name, value in listed:
        click.echo(f"  {name.ljust(width)}  {value}")


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
