"""What the commands of several drills take alike: lists with commas, of which each word is known."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import click

Callback: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def words_of(known: Sequence[str], *, or_none: bool = False) -> Callback:
    """Return a callback for an option: its words, small ones; one that is not known is a `click.BadParameter`, as no word at all unless `or_none`."""

    def checked(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
        wanted = [each.strip().lower() for each in value.split(",") if each.strip()]
        if unknown := [each for each in wanted if each not in known]:
            raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(known)}")
        if not wanted and not or_none:
            raise click.BadParameter(f"no word: there are {', '.join(known)}")
        return wanted

    return checked


def settings_of(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return what key=value words say, as a callback for an option; a word without `=` is a `click.BadParameter`."""
    if wrong := [each for each in values if "=" not in each]:
        raise click.BadParameter(f"{', '.join(wrong)}: say key=value")
    return dict(each.split("=", 1) for each in values)
