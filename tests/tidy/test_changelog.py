"""The changelog has one form: unreleased first, then versions, each with a date, a commit and entries by section."""

import re
import tomllib
from itertools import pairwise

from tests.tidy.tree import ROOT

TEXT = (ROOT / "docs" / "CHANGELOG.md").read_text()
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d), `[0-9a-f]{8,}`\)")
SECTIONS = ["Safety", "Features", "Internals"]


def versions() -> dict[str, str]:
    """Return the text of each version by its heading, in their order."""
    _, *parts = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def sections(text: str) -> dict[str, str]:
    """Return the text of each section of a version by its heading."""
    _, *parts = re.split(r"^### ", text, flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def test_what_is_unreleased_comes_first_and_versions_follow_the_newest_first() -> None:
    first, *numbered = versions()
    assert first == "Unreleased"
    found = [VERSION.fullmatch(heading) for heading in numbered]
    assert all(found), numbered
    keys = [tuple(map(int, each.group(1, 2, 3))) for each in found if each]
    dates = [each.group(4) for each in found if each]
    assert all(newer > older for newer, older in pairwise(keys)), numbered
    assert all(newer >= older for newer, older in pairwise(dates)), numbered
    released = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert numbered[0].startswith(f"{released} "), "the version of pyproject.toml has a section"


def test_each_version_has_known_sections_in_one_order_and_entries_in_each() -> None:
    for heading, text in versions().items():
        named = list(sections(text))
        assert named == [each for each in SECTIONS if each in named], heading
        assert named, f"{heading} says nothing"
        for name, entries in sections(text).items():
            assert re.search(r"^- ", entries, re.MULTILINE), f"{heading}, {name}: no entries"


def test_no_entry_stands_twice() -> None:
    entries = re.findall(r"^- .*(?:\n  .*)*", TEXT, flags=re.MULTILINE)
    assert len(set(entries)) == len(entries)
