"""Every row of docs/FAULTS.md about whole folders, with real processes: a line for each, and what is wrong at the end.

python -m tests.process.folder_faults --list
python -m tests.process.folder_faults --case older-home --case empty
"""

from pathlib import Path

import click

from tests.process.faults.cases import runs
from tests.process.faults.runner import command


@click.command()
@click.option("--case", "words", multiple=True, help="Those whose names contain this; repeatable.")
@click.option("--list", "listed", is_flag=True, help="Print the names, and play none.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where folders are made.")
def main(words: tuple[str, ...], *, listed: bool, folder: Path | None) -> None:
    """Play every run, or some."""
    if listed:
        click.echo("\n".join(run.name for run in runs()))
        return
    command(runs(), folder, words)


if __name__ == "__main__":
    main()
