"""The file of named keys, its sources, and `tidemark key`. RFC 3394 section 4.6: the vector with 256 bits."""

import base64
import codecs
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from region_broker.cli.key import key
from region_broker.ports.system.disk import RealDisk
from region_broker.security.sealing import key_ring, key_sources
from region_broker.security.sealing.key_ring import (
    FAILURES_MAX,
    RingError,
    WrappedKey,
    WrappedVersion,
    destroyed,
    read_ring,
    rewrapped,
    unlock,
    with_version,
    write_ring,
)
from region_broker.security.sealing.key_sources import KeySource, KeySources, SourceFailed
from region_broker.security.sealing.sealing import KeysFile, Sealing

KEK = bytes.fromhex("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F")
KEY = bytes.fromhex("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F")
WRAPPED = bytes.fromhex(
    "28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21"
)
DISK = RealDisk()
SOURCES = KeySources(DISK)
NOW = "2026-11-26T23:00:00Z"


def source_in(folder: Path, name: str = "source.key", content: bytes | None = None) -> KeySource:
    path = folder / name
    path.write_text(base64.b64encode(content or os.urandom(32)).decode() + "\n")
    return KeySource(file=str(path))


def command(code: str) -> tuple[str, ...]:
    return (
        sys.executable,
        "-c",
        f"import base64,sys,time\ngiven=base64.b64decode(sys.stdin.read())\n{code}",
    )


FLIP = command("print(base64.b64encode(bytes(255 ^ each for each in given)).decode())")


def test_a_file_and_a_variable_wrap_as_the_rfc_says(tmp_path: Path) -> None:
    held = base64.b64encode(KEK).decode()
    assert SOURCES.unlocked(source_in(tmp_path, content=KEK), [WRAPPED]) == [KEY]
    assert KeySources(DISK, {"K": held}).unlocked(KeySource(env="K"), [WRAPPED]) == [KEY]
    with pytest.raises(SourceFailed, match="another key"):
        SOURCES.unlocked(source_in(tmp_path, content=KEY), [WRAPPED])


def test_a_command_gets_and_gives_base64_by_its_pipes() -> None:
    service = KeySource(unwrap=FLIP, wrap=FLIP)
    ring = with_version(SOURCES, {}, "orders", service, NOW)
    assert ring["orders"].versions[0].made == NOW
    (version,) = unlock(SOURCES, ring)["orders"].versions
    stored = base64.b64decode(ring["orders"].versions[0].wrapped)
    assert stored == bytes(255 ^ each for each in version.material)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('hunter2', file=sys.stderr); print('hunter2'); sys.exit(3)", "ended with 3"),
        ("print('not hunter2')", "no base64"),
        ("print(base64.b64encode(b'hunter2').decode())", "no key of 32 bytes"),
        ("print('A' * 70_000)", "more than 65536 bytes"),
        ("time.sleep(60)", "did not end within"),
    ],
)
def test_INV_SKS1_INV_SKS2_a_command_that_fails_tells_nothing_that_it_wrote(
    code: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(key_sources, "COMMAND_TIMEOUT_S", 0.3)
    with pytest.raises(SourceFailed, match=told) as failed:
        SOURCES.unlocked(KeySource(unwrap=command(code)), [WRAPPED])
    assert "hunter2" not in str(failed.value)
    assert base64.b64encode(b"hunter2").decode() not in str(failed.value)


def test_a_source_that_does_not_give_back_what_it_wrapped_is_not_used() -> None:
    echo = command("print(base64.b64encode(given).decode())")
    with pytest.raises(SourceFailed, match="does not give back"):
        with_version(SOURCES, {}, "orders", KeySource(unwrap=echo, wrap=FLIP), NOW)


@pytest.mark.parametrize("size_bytes", [16, 24, 33])
def test_a_source_holds_a_key_of_256_bits(tmp_path: Path, size_bytes: int) -> None:
    """RFC 3394 would take 128 and 192, too."""
    with pytest.raises(SourceFailed, match=f"holds {size_bytes} bytes"):
        SOURCES.locked(source_in(tmp_path, content=bytes(size_bytes)), KEY)


def test_a_file_of_keys_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, source = tmp_path / "keys.toml", source_in(tmp_path)
    ring = with_version(SOURCES, {}, "a", source, NOW)
    ring = with_version(SOURCES, with_version(SOURCES, ring, "a", None, NOW), "b", source, NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    for bound, least, why in (
        ("KEYS_MAX", 2, "more than 1 keys"), ("VERSIONS_MAX", 2, "more than 1 versions"),
        ("_FILE_BYTES_MAX", path.stat().st_size, "bytes"),
    ):  # fmt: skip
        with monkeypatch.context() as bounds:
            bounds.setattr(key_ring, bound, least)
            assert read_ring(DISK, path) == ring
            bounds.setattr(key_ring, bound, least - 1)
            with pytest.raises(RingError, match=why):
                read_ring(DISK, path)
    first, second = (each.id for each in ring["a"].versions)
    path.write_text(path.read_text().replace(second, first))
    with pytest.raises(RingError, match="two of its versions have one id"):
        read_ring(DISK, path)


def test_INV_SKR2_what_would_not_read_back_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = tmp_path / "keys.toml", source_in(tmp_path)
    ring = with_version(SOURCES, {}, "a", source, NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    before = path.read_bytes()
    monkeypatch.setattr(key_ring, "_text_of", lambda _ring: before.decode())
    with pytest.raises(RingError, match="does not read back"):
        write_ring(DISK.write_file_atomic, path, with_version(SOURCES, ring, "b", source, NOW))
    assert path.read_bytes() == before


def test_sources_that_are_none(tmp_path: Path) -> None:
    for fields in ({}, {"file": "a", "env": "b"}, {"file": "a", "wrap": ("c",)}):
        with pytest.raises(ValueError, match=r"source|unwrap"):
            KeySource(**fields)
    bad = tmp_path / "bad"
    bad.write_text("hunter2")
    for source in (KeySource(file=str(tmp_path / "none")), KeySource(file=str(bad)),
                   KeySource(env="NOT_SET"), KeySource(unwrap=(str(tmp_path / "no-command"),))):  # fmt: skip
        with pytest.raises(SourceFailed) as failed:
            SOURCES.unlocked(source, [WRAPPED])
        assert "hunter2" not in str(failed.value)


def test_INV_SKR2_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    ring = with_version(SOURCES, ring, "a-b_C", KeySource(unwrap=FLIP, wrap=FLIP), NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    assert read_ring(DISK, path) == ring
    assert [len(found.versions) for _, found in sorted(unlock(SOURCES, ring).items())] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "orders = 1",
        "[orders]\nsource = { file = 'f' }",
        "[orders]\nsource = { file = 'f', env = 'e' }\nversions = []",
        "[orders]\nsource = { file = 'f' }\nversions = [{ id = '1', made = '', wrapped = 'x' }]",
        "[orders]\nsource = { file = 'f' }\nversions = [{ id = '0011223344556677', made = '' }]",
        "['a b']\nsource = { file = 'f' }\nversions = []",
        "[orders\n",
    ],
)
def test_a_file_that_is_not_right_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(RingError, match=r"keys\.toml"):
        read_ring(DISK, path)


def test_rewrapping_changes_what_wraps_and_no_key(tmp_path: Path) -> None:
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    before = unlock(SOURCES, ring)["orders"].versions
    again = rewrapped(SOURCES, ring, "orders", KeySource(unwrap=FLIP, wrap=FLIP))
    assert again["orders"].versions[0].wrapped != ring["orders"].versions[0].wrapped
    assert [each.material for each in unlock(SOURCES, again)["orders"].versions] == [
        each.material for each in before
    ]


def test_INV_SKR1_what_is_destroyed_is_gone_for_good(tmp_path: Path) -> None:
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    first, second = (each.id for each in ring["orders"].versions)
    with pytest.raises(RingError, match="rotate first"):
        destroyed(ring, "orders", second, NOW)
    with pytest.raises(RingError, match="no version"):
        destroyed(ring, "orders", "0" * 16, NOW)
    one = destroyed(ring, "orders", first, NOW)
    assert [each.version.hex() for each in unlock(SOURCES, one)["orders"].versions] == [second]
    whole = destroyed(one, "orders", None, "later")
    assert [(each.wrapped, each.destroyed) for each in whole["orders"].versions] == [
        ("", NOW), ("", "later"),
    ]  # fmt: skip
    assert "destroyed" in unlock(SOURCES, whole)["orders"].missing


def problem_of(sealing: Sealing) -> str:
    return sealing.problem or ""


def test_INV_SEA1_INV_SEA2_a_node_goes_on_with_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    source = source_in(tmp_path)
    write_ring(DISK.write_file_atomic, path, with_version(SOURCES, {}, "orders", source, NOW))
    sealing = Sealing(KeysFile(DISK, path), lambda: 0)
    sealing.read()
    assert sealing.refusal_of("orders") is None
    right = path.read_text()
    path.write_text("[not right")
    sealing.look()
    assert sealing.refusal_of("orders") is None
    assert "is not right" in problem_of(sealing)
    assert "is not right" in caplog.text
    path.write_text(right)
    sealing.look()
    assert not problem_of(sealing)
    write_ring(DISK.write_file_atomic, path, with_version(SOURCES, {}, "other", source, NOW))
    sealing.look()
    assert not problem_of(sealing)
    assert "orders" in (sealing.refusal_of("orders") or "")
    held = Path(source.file).read_text()
    Path(source.file).unlink()
    write_ring(
        DISK.write_file_atomic,
        path,
        {**read_ring(DISK, path), "third": read_ring(DISK, path)["other"]},
    )
    sealing.look()
    assert "No such file" in problem_of(sealing)
    told = sealing.refusal_of("third") or ""
    assert "the log of the node says why" in told
    assert str(tmp_path) not in told, "clients are told it"
    assert sealing.refusal_of("other") is None  # unlocked before
    Path(source.file).write_text(held)
    for _ in range(6):
        sealing.look()
    assert sealing.refusal_of("third") is None
    assert not problem_of(sealing)
    write_ring(DISK.write_file_atomic, path, destroyed(read_ring(DISK, path), "other", None, NOW))
    sealing.look()
    assert "destroyed" in (sealing.refusal_of("other") or "")
    assert not problem_of(sealing)  # as it was meant: nobody is called for it


def counting(sealing: Sealing) -> dict[str, list[str]]:
    return {name: [each.version.hex() for each in key.versions] for name, key in sealing.keys.named.items()}  # fmt: skip


def of_two_keys(tmp_path: Path) -> dict[str, WrappedKey]:
    """Return two keys, the first of which was rotated twice, and one of its versions destroyed."""
    source = source_in(tmp_path)
    ring = with_version(SOURCES, with_version(SOURCES, {}, "a", source, NOW), "b", source, NOW)
    for _ in range(2):
        ring = with_version(SOURCES, ring, "a", None, NOW)
    return dict(destroyed(ring, "a", ring["a"].versions[0].id, NOW))


def test_INV_SEA5_a_file_that_is_cut_off_anywhere_seals_by_no_older_version(tmp_path: Path) -> None:
    """It is copied in place, and read in the middle of that; or the disk was full, and it stays so."""
    sealing, path = looked_after(tmp_path, of_two_keys(tmp_path))
    whole, before = path.read_bytes(), counting(sealing)
    lines = whole.splitlines(keepends=True)
    for end in range(len(lines)):
        path.write_bytes(b"".join(lines[:end]))
        sealing.look()
        now = counting(sealing)
        assert now["a"] == before["a"], "whatever is there of it"
        assert now == before or problem_of(sealing) == "", (
            "a key that is gone whole may be meant to"
        )
        path.write_bytes(whole)
        sealing.look()
        assert (counting(sealing), problem_of(sealing)) == (before, "")


def test_INV_SKR4_INV_SEA5_an_older_copy_takes_no_version_away_and_brings_none_back(
    tmp_path: Path,
) -> None:
    rotated = of_two_keys(tmp_path)
    sealing, path = looked_after(tmp_path, rotated)
    before = counting(sealing)
    first = rotated["a"].versions[0]
    alive = WrappedVersion(id=first.id, made=first.made, wrapped=rotated["a"].versions[1].wrapped)
    for older, told in (
        ({**rotated, "a": WrappedKey(rotated["a"].source, rotated["a"].versions[:-1])}, "is not in it any more"),
        ({**rotated, "a": WrappedKey(rotated["a"].source, (alive, *rotated["a"].versions[1:]))}, "was destroyed"),
        ({}, "no key any more"),
    ):  # fmt: skip
        write_ring(DISK.write_file_atomic, path, older)
        sealing.look()
        assert counting(sealing) == before
        assert told in problem_of(sealing)
        assert sealing.refusal_of("a") is None
    started = Sealing(KeysFile(DISK, path), lambda: 0)
    started.read()  # whoever says that it is right starts the node with it
    assert counting(started) == {}
    write_ring(DISK.write_file_atomic, path, destroyed(rotated, "a", None, NOW))
    sealing.look()
    assert (counting(sealing)["a"], problem_of(sealing)) == ([], "")


def test_INV_SEA5_a_key_that_was_gone_comes_back_as_it_was_or_newer(tmp_path: Path) -> None:
    """1. The file is cut off between two keys. 2. It is restored, from a copy that is older than the last rotation."""
    rotated = of_two_keys(tmp_path)
    sealing, path = looked_after(tmp_path, rotated)
    before, key = counting(sealing), rotated["a"]
    write_ring(DISK.write_file_atomic, path, {"b": rotated["b"]})
    sealing.look()
    assert (list(counting(sealing)), problem_of(sealing)) == (["b"], "")
    write_ring(
        DISK.write_file_atomic, path, {**rotated, "a": WrappedKey(key.source, key.versions[:-1])}
    )
    sealing.look()
    assert list(counting(sealing)) == ["b"]
    assert "is not in it any more" in problem_of(sealing)
    write_ring(DISK.write_file_atomic, path, rotated)
    sealing.look()
    assert (counting(sealing), problem_of(sealing)) == (before, "")


def test_a_node_says_which_versions_count_and_which_it_has_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who rotates a key, or destroys a version, wants to hear from each node that it has taken place there."""
    caplog.set_level("INFO")
    path, source = tmp_path / "keys.toml", source_in(tmp_path)
    ring = with_version(SOURCES, {}, "orders", source, NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    sealing = Sealing(KeysFile(DISK, path), lambda: 0)
    sealing.read()
    first = ring["orders"].versions[0].id
    assert f"orders seals by {first}, versions that it opens: 1" in caplog.text
    caplog.clear()
    sealing.look()
    assert caplog.text == "", "nothing has changed"
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    sealing.look()
    second = ring["orders"].versions[1].id
    assert f"orders seals by {second}, versions that it opens: 2" in caplog.text
    assert "Forgotten" not in caplog.text
    write_ring(DISK.write_file_atomic, path, destroyed(ring, "orders", first, NOW))
    sealing.look()
    assert f"Forgotten here: {first} of orders" in caplog.text
    held = Path(source.file).read_text().strip()
    assert held not in caplog.text


def test_a_node_says_that_it_has_taken_up_keys_that_were_wrapped_anew_and_what_that_does_not_prove(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who moves keys to another source waits for that at each node, before the old source is destroyed."""
    caplog.set_level("INFO")
    path, source = tmp_path / "keys.toml", source_in(tmp_path)
    ring = with_version(SOURCES, {}, "orders", source, NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    sealing = Sealing(KeysFile(DISK, path), lambda: 0)
    sealing.read()
    assert "the same versions" not in caplog.text
    write_ring(
        DISK.write_file_atomic,
        path,
        rewrapped(SOURCES, ring, "orders", source_in(tmp_path, "other.key")),
    )
    for _ in range(7):
        sealing.look()
    assert caplog.text.count("the same versions count as before") == 1, "said once"
    assert "no source is asked before the next start" in caplog.text


def test_a_version_that_was_destroyed_is_not_said_to_be_usable_here(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    write_ring(
        DISK.write_file_atomic, path, destroyed(ring, "orders", ring["orders"].versions[0].id, NOW)
    )
    result = CliRunner().invoke(key, ["list", str(path), "--check", "-o", "json"])
    assert [row["here"] for row in json.loads(result.output)] == ["no", "yes"]


def test_a_byte_order_mark_is_no_part_of_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    write_ring(DISK.write_file_atomic, path, ring)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_ring(DISK, path) == ring


def test_INV_SEA2_a_version_that_cannot_be_unlocked_yet_leaves_the_older_ones(
    tmp_path: Path,
) -> None:
    source = source_in(tmp_path)
    ring = with_version(SOURCES, {}, "orders", source, NOW)
    held = unlock(SOURCES, ring)
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    Path(source.file).unlink()
    found = unlock(SOURCES, ring, held)["orders"]
    assert found.versions == held["orders"].versions
    assert found.failed
    assert "No such file" in found.missing
    gone = destroyed(ring, "orders", ring["orders"].versions[0].id, NOW)
    assert unlock(SOURCES, gone, held)["orders"].versions == ()


def test_INV_SEA6_where_the_newest_version_is_not_unlocked_nothing_is_sealed_by_a_former_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rotated, and the key service of this node does not know the new version: the former one may be destroyed next."""
    ring, wrapped = of_a_command(2)
    path = tmp_path / "keys.toml"
    answers = {wrapped[0]: KEY}
    answering(monkeypatch, answers)
    former = {"orders": WrappedKey(ring["orders"].source, ring["orders"].versions[:1])}
    write_ring(DISK.write_file_atomic, path, former)
    node = Sealing(KeysFile(DISK, path), lambda: 0)
    node.read()
    by_the_former = node.keys.sealing_key("orders").ref
    write_ring(DISK.write_file_atomic, path, ring)
    node.look()
    refusal = node.refusal_of("orders")
    assert refusal is not None
    assert ring["orders"].versions[1].id in refusal
    node.keys.cipher(by_the_former)  # which still opens what it sealed
    answers[wrapped[1]] = KEK
    node.read()
    assert node.keys.sealing_key("orders").ref.version.hex() == ring["orders"].versions[1].id


def test_the_command_makes_rotates_rewraps_lists_and_destroys(tmp_path: Path) -> None:
    file, secret = tmp_path / "keys.toml", tmp_path / "orders.key"

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(key, list(words))
        assert done.exit_code == code, done.output
        assert secret.read_text().strip() not in done.output
        return done.output

    secret.write_text("not there yet")
    secret.unlink()
    secret_words = ("--file", str(secret))
    done = CliRunner().invoke(key, ["make", str(file), "orders", *secret_words])
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    run("make", str(file), "orders", *secret_words, code=1)
    for words in (("make", str(file), "orders"), ("rewrap", str(file), "gone")):
        run(*words, "--file", str(tmp_path / "needless.key"), code=1)
    assert not (tmp_path / "needless.key").exists()
    run("rotate", str(file), "orders")
    run("rewrap", str(file), "orders", "--file", str(tmp_path / "other.key"))
    told = run("list", str(file), "--check")
    assert told.count("orders") == 2
    assert "newest" in told
    assert "--yes" in run("destroy", str(file), "orders", code=1), "nobody was there to say yes"
    assert "destroyed" not in run("list", str(file))
    run("destroy", str(file), "orders", "--yes")
    assert run("list", str(file)).count("destroyed") == 2
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")]


def test_INV_SKR3_a_version_that_its_source_has_lost_keeps_no_other_away(tmp_path: Path) -> None:
    """Key services disable what wrapped old versions; a version may also be wrapped by a key that was replaced."""
    source = source_in(tmp_path)
    ring = with_version(SOURCES, {}, "orders", source, NOW)
    source_in(tmp_path)  # replaced
    for _ in range(2):
        ring = with_version(SOURCES, ring, "orders", None, NOW)
    found = unlock(SOURCES, ring)["orders"]
    lost, *rest = [each.id for each in ring["orders"].versions]
    assert [each.version.hex() for each in found.versions] == rest
    assert found.failed
    assert lost in found.missing


def test_INV_SKR3_a_command_that_gives_nothing_is_not_asked_for_each_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    for _ in range(5):
        ring = with_version(SOURCES, ring, "orders", None, NOW)
    asked: list[bytes] = []

    def silent(_arguments: tuple[str, ...], given: bytes) -> bytes:
        asked.append(given)
        raise SourceFailed("command x did not end within 10 s")

    monkeypatch.setattr(key_sources, "_run", silent)
    broken = {"orders": WrappedKey(KeySource(unwrap=("x",)), ring["orders"].versions)}
    assert unlock(SOURCES, broken)["orders"].versions == ()
    assert len(asked) == FAILURES_MAX


def answering(monkeypatch: pytest.MonkeyPatch, known: Mapping[bytes, bytes]) -> list[bytes]:
    """Let commands unwrap what is `known`, and fail for all else; return what they are asked for, as it comes."""
    asked: list[bytes] = []

    def run(_arguments: tuple[str, ...], given: bytes) -> bytes:
        asked.append(given)
        if given not in known:
            raise SourceFailed("command x ended with 1")
        return known[given]

    monkeypatch.setattr(key_sources, "_run", run)
    return asked


def of_a_command(count: int) -> tuple[dict[str, WrappedKey], list[bytes]]:
    """Return a key of so many versions, the newest last, and what each of them is wrapped in."""
    wrapped = [b"wrapped %d" % number for number in range(count)]
    versions = tuple(
        WrappedVersion(id=f"{number:016x}", made=NOW, wrapped=base64.b64encode(each).decode())
        for number, each in enumerate(wrapped)
    )
    return {"orders": WrappedKey(KeySource(unwrap=("x",)), versions)}, wrapped


def test_INV_SKR3_what_seals_now_is_asked_for_before_older_ones_that_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring, wrapped = of_a_command(FAILURES_MAX + 2)
    answering(monkeypatch, {wrapped[-1]: KEY})
    (found,) = unlock(SOURCES, ring)["orders"].versions
    assert found.version.hex() == ring["orders"].versions[-1].id


def test_INV_SKR3_a_file_that_has_lost_many_newer_ones_still_gives_the_oldest(
    tmp_path: Path,
) -> None:
    """A file is read at once, so there is nothing to be saved by giving up."""
    held = source_in(tmp_path, content=KEK)
    ring = with_version(SOURCES, {}, "orders", held, NOW)
    source_in(tmp_path)
    for _ in range(FAILURES_MAX + 1):
        ring = with_version(SOURCES, ring, "orders", None, NOW)
    source_in(tmp_path, content=KEK)
    found = unlock(SOURCES, ring)["orders"].versions
    assert [each.version.hex() for each in found] == [ring["orders"].versions[0].id]


def test_INV_SEA2_nobody_is_asked_for_what_was_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, wrapped = of_a_command(3)
    asked = answering(monkeypatch, dict.fromkeys(wrapped[:2], KEY))
    held = unlock(SOURCES, ring)
    assert sorted(asked) == wrapped
    asked.clear()
    assert unlock(SOURCES, ring, held)["orders"].versions == held["orders"].versions
    assert asked == wrapped[2:]


def test_INV_SKR1_rewrapping_brings_nothing_back_and_asks_for_nothing_that_is_gone(
    tmp_path: Path,
) -> None:
    ring = with_version(SOURCES, {}, "orders", source_in(tmp_path), NOW)
    ring = with_version(SOURCES, ring, "orders", None, NOW)
    ring = destroyed(ring, "orders", ring["orders"].versions[0].id, NOW)
    again = rewrapped(SOURCES, ring, "orders", source_in(tmp_path, "new.key"))
    assert again["orders"].versions[0] == ring["orders"].versions[0]
    assert unlock(SOURCES, again)["orders"].versions == unlock(SOURCES, ring)["orders"].versions


@pytest.mark.parametrize(
    "odd", ["a\x7fb", '" \\ \x01\n\t', "\u00e9 \uffff", "\U0001f511 \U00010348"]
)
def test_INV_SKR2_any_path_and_argument_reads_back(tmp_path: Path, odd: str) -> None:
    """TOML's strings are not quite JSON's: DEL is escaped in them, and half a character is none (TOML 1.0, "String")."""
    path = tmp_path / "keys.toml"
    ring = {
        "a": WrappedKey(KeySource(file=odd), ()),
        "b": WrappedKey(KeySource(unwrap=(odd, "")), ()),
    }
    write_ring(DISK.write_file_atomic, path, ring)
    assert read_ring(DISK, path) == ring


def test_INV_SKR2_a_path_that_is_no_text_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Names of files may be any bytes; Python shows those that are no UTF-8 as halves of characters."""
    path = tmp_path / "keys.toml"
    with pytest.raises(RingError, match=r"keys\.toml"):
        write_ring(DISK.write_file_atomic, path, {"a": WrappedKey(KeySource(file="a\udc80b"), ())})
    assert not path.exists()


def looked_after(tmp_path: Path, ring: Mapping[str, WrappedKey]) -> tuple[Sealing, Path]:
    path = tmp_path / "keys.toml"
    write_ring(DISK.write_file_atomic, path, ring)
    sealing = Sealing(KeysFile(DISK, path), lambda: 0)
    sealing.read()
    return sealing, path


def test_INV_SEA2_a_source_that_failed_is_asked_again_at_every_sixth_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every 30 s, at a look each 5 s; and a line in the log, not one for each time."""
    ring, _ = of_a_command(1)
    asked = answering(monkeypatch, {})
    sealing, _ = looked_after(tmp_path, ring)
    counts = []
    for _ in range(12):
        asked.clear()
        sealing.look()
        counts.append(len(asked))
    assert counts == [0, 0, 0, 0, 0, 1] * 2
    assert caplog.text.count("ended with 1") == 1


def test_INV_SEA1_a_file_of_other_content_is_read_though_it_is_as_long(tmp_path: Path) -> None:
    """A destroyed key is to be forgotten within seconds, whatever takes its place."""
    source = source_in(tmp_path)
    sealing, path = looked_after(tmp_path, with_version(SOURCES, {}, "first", source, NOW))
    size_bytes = path.stat().st_size
    write_ring(DISK.write_file_atomic, path, with_version(SOURCES, {}, "other", source, NOW))
    assert path.stat().st_size == size_bytes
    sealing.look()
    assert [*sealing.keys.named] == ["other"]
