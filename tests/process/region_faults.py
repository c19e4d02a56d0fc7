"""Rows of docs/FAULTS.md about regions, links, failovers and clients, with real processes: all that outsiders can cause.

python -m tests.process.region_faults --list
python -m tests.process.region_faults --case split-brain
"""

from pathlib import Path

import click

from tests.process.faults.regions import CLIENTS, REGIONS
from tests.process.faults.runner import command


@click.command()
@click.option("--case", "words", multiple=True, help="Those whose names contain this; repeatable.")
@click.option("--list", "listed", is_flag=True, help="Print the names, and play none.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where folders are made.")
def main(words: tuple[str, ...], *, listed: bool, folder: Path | None) -> None:
    """Play every scene, or some."""
    if listed:
        click.echo("\n".join(scene.name for scene in (*REGIONS, *CLIENTS)))
        return
    command([*REGIONS, *CLIENTS], folder, words)


if __name__ == "__main__":
    main()
