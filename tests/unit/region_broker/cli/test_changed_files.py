"""The files of keys and of tokens: one command at a time changes them, durably, and whoever could read them still can."""

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import click
import pytest

from region_broker.cli import key as commands
from region_broker.cli.changed_files import locked, replace_file
from region_broker.cli.key import key
from region_broker.cli.token import token
from region_broker.ports.system.disk import RealDisk
from region_broker.security.sealing.key_ring import WrappedVersion, read_ring


def run(group: click.Group, *arguments: object) -> None:
    with redirect_stdout(StringIO()):  # `token create` prints the secret
        group.main([str(each) for each in arguments], standalone_mode=False)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with one key of two versions."""
    path = tmp_path / "keys.toml"
    run(key, "make", path, "orders", "--file", tmp_path / "orders.key")
    run(key, "rotate", path, "orders")
    return path


def versions(path: Path) -> tuple[WrappedVersion, ...]:
    return read_ring(RealDisk(), path)["orders"].versions


def ids(path: Path) -> list[str]:
    return [each.id for each in versions(path)]


def destroyed(path: Path) -> list[str]:
    return [each.id for each in versions(path) if each.destroyed]


def answering(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Say yes to what is asked, after something has happened meanwhile."""

    def agreed(_question: str) -> None:
        meanwhile()

    monkeypatch.setattr(commands, "agreed", agreed)


def test_INV_CKY1_a_version_that_is_made_while_destroy_asks_stays(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes had sealed by it already when the answer came: all of that was unreadable."""
    old = ids(keys)[0]
    answering(monkeypatch, lambda: run(key, "rotate", keys, "orders"))
    run(key, "destroy", keys, "orders", "--version", old)
    assert len(ids(keys)) == 3
    assert destroyed(keys) == [old]


def test_INV_CKY1_all_versions_are_those_that_were_there_when_it_asked(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, lambda: run(key, "rotate", keys, "orders"))
    with pytest.raises(SystemExit):
        run(key, "destroy", keys, "orders")
    assert "nothing is destroyed" in capsys.readouterr().err
    assert not destroyed(keys)


def test_INV_CKY1_what_became_the_newest_version_while_destroy_asks_is_not_destroyed(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(key, "rotate", keys, "orders")
    first, second, third = ids(keys)

    def back_to_a_copy() -> None:
        """An operator puts a copy in place that lacks the third version."""
        text = keys.read_text()
        keys.write_text(text[: text.rindex("[[orders.versions]]")])

    answering(monkeypatch, back_to_a_copy)
    with pytest.raises(SystemExit):
        run(key, "destroy", keys, "orders", "--version", second)
    assert "rotate first" in capsys.readouterr().err
    assert ids(keys) == [first, second]
    assert not destroyed(keys)
    assert third not in ids(keys)


def behind_another_command(
    path: Path, change: Callable[[], None], meanwhile: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Do `change`, which finds `path` locked, while the one who has the lock does `meanwhile`."""
    came = threading.Event()

    def ended() -> None:
        try:
            change()
        finally:
            came.set()  # also where it has not asked for the lock

    def flock(descriptor: int, operation: int, real: Callable[[int, int], None] = fcntl.flock) -> None:  # fmt: skip
        came.set()
        real(descriptor, operation)

    with locked(path):
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", flock)
            thread = threading.Thread(target=ended)
            thread.start()
            assert came.wait(60)
        meanwhile()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("command", ["make", "rotate", "rewrap", "destroy"])
def test_INV_CKY1_no_command_loses_what_another_one_did(
    keys: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow `rotate` or `rewrap` brought back a version that was destroyed meanwhile."""
    run(key, "rotate", keys, "orders")
    old = ids(keys)[0]
    arguments = {
        "make": ("make", keys, "second", "--file", keys.with_name("second.key")),
        "rotate": ("rotate", keys, "orders"),
        "rewrap": ("rewrap", keys, "orders", "--file", keys.with_name("new.key")),
        "destroy": ("destroy", keys, "orders", "--version", ids(keys)[1], "--yes"),
    }[command]
    without, with_all = keys.with_name("without"), keys.read_bytes()
    run(key, "rotate", keys, "orders")
    run(key, "destroy", keys, "orders", "--version", old, "--yes")
    without.write_bytes(keys.read_bytes())
    keys.write_bytes(with_all)

    behind_another_command(
        keys, lambda: run(key, *arguments), lambda: without.replace(keys), monkeypatch
    )
    assert old in destroyed(keys), "it came back"
    assert len(ids(keys)) == (5 if command == "rotate" else 4)
    assert (ids(keys)[1] in destroyed(keys)) is (command == "destroy")
    ring = read_ring(RealDisk(), keys)
    assert ("second" in ring) is (command == "make")
    assert ring["orders"].source.file.endswith("new.key") is (command == "rewrap")


def test_INV_CCH1_no_token_is_lost_to_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, with_second = tmp_path / "tokens.json", tmp_path / "second.json"
    for name in ("first", "second"):
        run(token, "create", name, "--role", "reader", "--file", path)
    with_second.write_bytes(path.read_bytes())
    run(token, "revoke", "second", "--file", path)
    behind_another_command(
        path, lambda: run(token, "revoke", "first", "--file", path),
        lambda: with_second.replace(path), monkeypatch,
    )  # fmt: skip
    assert b"second" in path.read_bytes()
    assert b"first" not in path.read_bytes()


def followed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which is added what is made durable, by name."""
    synced: list[str] = []

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        real(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


@pytest.mark.parametrize("command", ["make", "rewrap"])
def test_INV_CKY2_a_new_source_is_durable_before_what_it_unlocks(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss the file of keys named a source that was empty."""
    path = tmp_path / "keys.toml"
    if command == "rewrap":
        run(key, "make", path, "orders", "--file", tmp_path / "orders.key")
    (tmp_path / "held").mkdir()
    synced = followed(monkeypatch)
    run(key, command, path, "orders", "--file", tmp_path / "held" / "new.key")
    source, folder_of_source, *rest = synced
    assert source.startswith(".new.key.")
    assert folder_of_source == "held"
    assert rest == ["keys.toml.new", tmp_path.name]
    assert (tmp_path / "held" / "new.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", ["make", "rewrap"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_INV_CKY3_a_source_that_was_made_for_what_failed_is_told_of(
    tmp_path: Path, command: str, is_replaced: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """It stays: whether the file of keys names it by now is not known where its folder cannot be made durable."""
    path, source = tmp_path / "keys.toml", tmp_path / "new.key"
    if command == "rewrap":
        run(key, "make", path, "orders", "--file", tmp_path / "orders.key")

    def replaced(file: Path, data: bytes, **modes: int) -> None:
        if is_replaced:
            replace_file(file, data, **modes)
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(commands, "replace_file", replaced)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(key, command, path, "orders", "--file", source)
    told = capsys.readouterr()
    assert f"{source} was made for this and stays" in told.err
    assert "No space left on device" in told.err
    assert "keep a copy" not in told.out, "nothing to keep is made"
    assert source.exists()
    monkeypatch.undo()
    if not is_replaced:
        run(key, command, path, "orders", "--file", source)
    assert read_ring(RealDisk(), path)["orders"].source.file == str(source)


def test_INV_CKY3_of_a_source_that_was_there_before_nothing_is_said(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.with_name("orders.key").unlink()
    there = keys.with_name("second.key")
    run(key, "make", keys, "second", "--file", there)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(key, "rewrap", keys, "orders", "--file", there)
    assert "was made" not in capsys.readouterr().err


def test_INV_CCH2_a_revoked_token_is_gone_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename is durable once its folder is."""
    path = tmp_path / "tokens.json"
    run(token, "create", "ci", "--role", "operator", "--file", path)
    synced = followed(monkeypatch)
    run(token, "revoke", "ci", "--file", path)
    assert synced == ["tokens.json.new", tmp_path.name]


@pytest.mark.parametrize(("mode", "kept"), [(0o600, 0o600), (0o640, 0o640), (0o644, 0o644)])
def test_INV_CCH2_whoever_could_read_the_keys_still_can(keys: Path, mode: int, kept: int) -> None:
    """After `key rotate` by root the node's own user could not read them."""
    keys.chmod(mode)
    owner = os.geteuid()
    if owner == 0:  # only root can give a file away
        owner = 12_345
        os.chown(keys, owner, owner)
    run(key, "rotate", keys, "orders")
    found = keys.stat()
    assert found.st_mode & 0o777 == kept
    assert found.st_uid == owner


def test_INV_CCH2_a_file_of_tokens_is_never_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    run(token, "create", "ci", "--role", "operator", "--file", path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    run(token, "create", "second", "--role", "operator", "--file", path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(key, "make", tmp_path / "none" / "keys.toml", "orders", "--file", tmp_path / "k")
    assert f"the folder {tmp_path / 'none'} is not there" in capsys.readouterr().err
    assert not (tmp_path / "k").exists()


def test_INV_CCH2_no_link_that_stands_in_the_place_of_a_lock_is_followed(tmp_path: Path) -> None:
    """Whoever may write to the folder would choose a file that root gives to the folder's owner."""
    other, path = tmp_path / "other", tmp_path / "keys.toml"
    other.write_text("of somebody else")
    before = other.stat()
    (tmp_path / "keys.toml.lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic"), locked(path):
        raise AssertionError("it was locked")
    after = other.stat()
    assert (after.st_uid, after.st_mode, after.st_size) == (before.st_uid, before.st_mode, before.st_size)  # fmt: skip


def test_INV_CCH1_the_lock_is_for_who_may_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with locked(path):
        assert path.with_name("keys.toml.lock").stat().st_mode & 0o777 == 0o600
