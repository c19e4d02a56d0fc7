"""Which known word was meant by one that is not known.

Pure.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_SIMILAR: Final = 0.75


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question after the known word that was meant, empty if none is near."""
    found = near(word, known)
    return f"; did you mean {found}?" if found else ""


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, whatever the case of its letters; None if none is near."""
    by_small = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), list(by_small), n=1, cutoff=_SIMILAR)
    return by_small[found[0]] if found else None
