"""What searches among very many, and in which order: models and properties, and behind them the simulator's lives.

INV-TSE1  searches come behind all else, and lives behind all other searches: what a slow machine leaves out is a part of them
INV-TSE2  which of them a slow machine leaves out changes with the turn that is named, file by file; without a turn they come in the order of their files
          1. `.ci/run` had no time for the same 700 searches, again and again. 2. A change made one of them wrong, and nobody saw it.
          3. A faster machine played it days later, and refused what somebody else had changed.

Not here: when none begins any more (`tests.conftest`), what goes to one worker (`tests.work_units`).
"""

from hashlib import sha256
from typing import Final

_SEARCHING: Final = ("tests/model/", "tests/property/")


def rank(nodeid: str, *, is_life: bool) -> int:
    """Return 0 for a test of an example, more for a search, most for lives of the simulator."""
    return 2 if is_life else int(nodeid.startswith(_SEARCHING))


def place(nodeid: str, *, is_life: bool, turn: str) -> tuple[int, bytes]:
    """Return what tests are sorted by, those that are equal in their order; `turn`: any text, empty for none."""
    ranked = rank(nodeid, is_life=is_life)
    path = nodeid.partition("::")[0]
    return ranked, sha256(f"{turn} {path}".encode()).digest() if turn and ranked else b""
