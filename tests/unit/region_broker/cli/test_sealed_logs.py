"""`tidemark log dump` and `log export` of sealed logs, with the key and without it (INV-EX4)."""

import json
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from idempotency.record_batch import read_header
from region_broker.cli.inspect.log_export import log
from region_broker.log.recovery.kept_deletions import NOTE_NAME, DeletionNote
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.security.sealing.sealed_batch import LogPlace
from region_broker.security.sealing.sealing import KeysFile, Sealing
from tests.fixtures.sealing_keys import keys_in_files
from tests.fixtures.secret_scan import noted

TOPIC_ID = UUID("8f0c2b5d-e1d9-4f6e-8d6b-7c1f5a2e9d30")
SECRET = noted("only-by-the-key-51aa").encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return keys_in_files(tmp_path / "keys", "orders")


def segment(keys: Path, into: Path) -> None:
    """Write a plain and a sealed batch of partition 2 of the topic."""
    sealing = Sealing(KeysFile(RealDisk(), keys), lambda: 0)
    sealing.read()
    plain = build_batch([Record(b"k", b"plain", timestamp_ms=7)])
    second = build_batch([Record(b"k", SECRET, timestamp_ms=8)], base_offset=1)
    closed = sealing.sealed(second, read_header(second), LogPlace.of(TOPIC_ID, 2), "orders")
    into.parent.mkdir(parents=True)
    into.write_bytes(plain + closed)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(log, [str(word) for word in words])


@pytest.mark.parametrize(
    "path",
    [
        f"{TOPIC_ID.hex}/2/{0:020}.log",
        f"{TOPIC_ID.hex}.kept/2/{0:020}.log",
        f"{TOPIC_ID.hex}/2.damaged/{0:020}.log",
        f"quarantine/main/{TOPIC_ID}-2/8-0-2.batches",
        f"quarantine/main/{TOPIC_ID.hex}-2/8-0-2.batches",
    ],
)
def test_dump_opens_what_is_sealed_wherever_it_lies(path: str, tmp_path: Path, keys: Path) -> None:
    segment(keys, tmp_path / path)
    done = run("dump", tmp_path / path, "--records", "-o", "json")
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)
    assert "sealed" not in first
    assert first["content"][0]["value"] == "plain"
    assert second["sealed"]["key"] == "orders"
    assert second["crc"] == "ok"
    assert "--keys" in second["content"][0]["sealed"]
    assert "not shown" in run("dump", tmp_path / path, "--records").stdout
    done = run("dump", tmp_path / path, "--records", "-o", "json", "--keys", keys)
    assert json.loads(done.stdout)[1]["content"][0]["value"] == SECRET.decode()


def test_dump_of_a_lone_file_or_of_another_log_says_why(tmp_path: Path, keys: Path) -> None:
    for folder, told in (("lone", "which"), (f"{TOPIC_ID.hex}/3", "not what was sealed for this")):
        path = tmp_path / folder / f"{0:020}.log"
        segment(keys, path)
        done = run("dump", path, "--records", "--keys", keys)
        assert told in done.stdout
        assert SECRET.decode() not in done.stdout
    lone = tmp_path / "lone"
    assert run("dump", lone, "--keys", tmp_path / "none.toml").exit_code == 2


def test_INV_EX4_export_names_what_it_could_not_open(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / f"{TOPIC_ID.hex}.kept"
    segment(keys, folder / "2" / f"{0:020}.log")
    (folder / NOTE_NAME).write_bytes(
        DeletionNote(
            topic_id="6f", name="orders", partition_count=3, configs={}, why="an order"
        ).content()
    )
    done = run("export", folder)
    assert done.exit_code == 1
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["plain"]
    assert "'orders'" in done.stderr
    done = run("export", folder, "--keys", keys)
    assert done.exit_code == 0
    values = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    assert values == ["plain", SECRET.decode()]


def test_export_of_a_quarantine_says_what_prints_it(tmp_path: Path, keys: Path) -> None:
    tail = tmp_path / f"{TOPIC_ID}-2" / "8-0-2.batches"
    segment(keys, tail)
    done = run("export", tail.parent, "--keys", keys)
    assert done.exit_code == 2
    assert "log dump --records" in done.stderr
    assert SECRET.decode() not in done.stdout
    shown = run("dump", tail, "--records", "--keys", keys)
    assert SECRET.decode() in shown.stdout
