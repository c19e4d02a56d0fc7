"""Each thing has one name, and words that it had before do not come back (ADR 40)."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.tidy.tree import CODE_FOLDERS, ROOT, shown

FORMER: Final = {
    "greet": "handshake",
    "greets": "makes a handshake",
    "greeted": "made its handshake",
    "greeting": "handshake, or hello for the message",
    "greetings": "handshakes, or hellos for the messages",
    "restless": "dirty",
    "bookmark": "recovery checkpoint",
    "bookmarks": "recovery checkpoints",
    "side file": "log index",
    "side files": "log indexes",
    "taker": "failover candidate",
    "takers": "failover candidates",
    "home": "the primary region",
    "homes": "primary regions",
    "acting region": "primary region",
    "claimant": "donor",
    "claimants": "donors",
}
"""Former words, and what is said today."""
STORED: Final = re.compile(
    r"\.bookmark|,bookmark\}|\"(promised_)?taker\"|home_(region|silent_ms|without_shown)|HOME_REGION"
    r"|Path\.home|java\.home|(JAVA|XDG_CONFIG)_HOME|tidemark produce greetings|^ *home = os\.environ|\(home\)"
)
"""Names that users or files keep, and other people's."""
ELSEWHERE: Final = {
    "docs/CHANGELOG.md", "docs/adr/0038-rooms-by-what-happens-in-them.md", "docs/adr/0040-one-word-for-each-thing.md",
    "region_broker/former_names.py", "tests/unit/region_broker/test_former_names.py", "tests/tidy/test_words.py",
    "region_broker/cli/doctor.py", "tests/unit/region_broker/cli/test_doctor.py",
}  # fmt: skip
"""What tells of former words, or of a folder that Java calls home."""
_WORD: Final = re.compile(
    r"(?<![a-z0-9])(" + "|".join(word.replace(" ", "[ _-]") for word in FORMER) + r")(?![a-z0-9])"
)
_BEGINNINGS: Final = (
    "greet",
    "restless",
    "bookmark",
    "side",
    "taker",
    "home",
    "acting",
    "claimant",
)


def texts() -> list[Path]:
    """Return everything that people read."""
    folders = [ROOT / name for name in (*CODE_FOLDERS, "docs")]
    found = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".md"}
    ]
    return [ROOT / "README.md", *(path for path in found if shown(path) not in ELSEWHERE)]


def test_what_was_called_otherwise_before_is_not_called_so_again() -> None:
    left = [
        f"{shown(path)}:{number}: {found[0]!r} is called {FORMER[re.sub('[_-]', ' ', found[0])]!r} today"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(each in line.lower() for each in _BEGINNINGS)
        for found in _WORD.finditer(STORED.sub("", line).lower())
        if found[0] != "acting_region"
    ]
    if left:
        pytest.fail("\n".join(left))
