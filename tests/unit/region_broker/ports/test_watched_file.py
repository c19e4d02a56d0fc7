"""A file that others replace is read where it may be another one than before, and never taken for read when it was not."""

import os
from pathlib import Path
from typing import Any

import pytest

from region_broker.ports.system.watched_file import WatchedFile


def put(path: Path, data: bytes) -> None:
    """Replace a file as commands do, at one moment of a coarse clock."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    os.utime(fresh, ns=(1, 1))
    fresh.replace(path)


def test_a_file_of_the_same_size_and_moment_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    put(path, b"one")
    watched = WatchedFile(path, 10)
    assert [watched.look() for _ in range(2)] == [b"one", None]
    put(path, b"two")
    assert [watched.look() for _ in range(2)] == [b"two", None]


def test_a_file_that_could_not_be_read_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    put(path, b"one")
    watched = WatchedFile(path, 10)

    def refused(*_asked: Any, **_how: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as denied:
        denied.setattr(Path, "open", refused)
        with pytest.raises(PermissionError):
            watched.look()
    assert watched.look() == b"one"


def test_of_a_larger_file_one_byte_more_than_may_be_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    put(path, b"x" * 100)
    assert WatchedFile(path, 10).look() == b"x" * 11
