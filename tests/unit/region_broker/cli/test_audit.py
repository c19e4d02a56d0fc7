"""`tidemark audit` over files: exit codes, filters, what a terminal gets (INV-CLA1, INV-CLA2)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from region_broker.cli.audit import audit
from region_broker.ports.system.disk import RealDisk
from region_broker.security.audit.chain_files import ChainFiles, Owner
from tests.unit.region_broker.security.audit.chains import record

OWNER = Owner("world", "eu", 1, "ab" * 16)
AT_MS = 1_764_158_400_000
"""2025-11-26T12:00:00Z"""


def write(folder: Path, *rows: dict[str, Any]) -> None:
    chain = ChainFiles.open(RealDisk(), folder, OWNER, file_bytes_max=1 << 20, wall_ms=AT_MS)
    for row in rows:
        chain.write([row], AT_MS)
    chain.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "audit",
        record("CreateTopic", at_ms=AT_MS, principal="User:alice", resource="orders\x1b[2J\nx"),
        record("login", at_ms=AT_MS + 60_000, kind="login", outcome="refused", principal="User:eve", count=7),
        record("DeleteTopic", at_ms=AT_MS + 120_000, principal="User:alice"),
    )  # fmt: skip
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(audit, [str(word) for word in words])


def test_a_sound_chain_is_zero_and_says_what_it_cannot_know(folder: Path) -> None:
    """INV-CLA1: a data folder stands for its folder `audit`, a file for itself."""
    for path in (folder, folder / "audit", folder / "audit" / "audit-00000001.jsonl"):
        result = run("verify", path)
        assert result.exit_code == 0, result.output
        assert "the chain is sound" in result.output
        assert "node 1 of region eu, cluster world" in result.output
        assert "--expect SEQ:HASH" in result.output


def test_what_is_wrong_is_one_with_the_place(folder: Path) -> None:
    path = folder / "audit" / "audit-00000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"User:eve", b"User:bob"))
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "WRONG  audit-00000001.jsonl:3: record 3: its hash is not that of its bytes" in result.output  # fmt: skip
    found = json.loads(run("verify", folder, "-o", "json").output)
    assert (found["sound"], found["findings"][0]["line"]) == (False, 3)


def test_a_head_that_was_kept_shows_a_cut_tail(folder: Path) -> None:
    head = run("head", folder).output.strip()
    assert run("verify", folder, "--expect", head).exit_code == 0
    assert "--expect SEQ:HASH" not in run("verify", folder, "--expect", head).output
    path = folder / "audit" / "audit-00000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    result = run("verify", folder, "--expect", head)
    assert (result.exit_code, "its end was cut off" in result.output) == (1, True)
    assert run("verify", folder, "--expect", "nonsense").exit_code == 2


def test_there_is_nothing_is_not_sound(tmp_path: Path) -> None:
    assert run("verify", tmp_path).exit_code == 3
    assert run("verify", tmp_path / "none").exit_code == 3
    (tmp_path / "audit-00000001.jsonl").touch()
    assert run("verify", tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("words", "seqs"),
    [
        ((), [1, 2, 3, 4]),
        (("--principal", "User:alice"), [2, 4]),
        (("--operation", "createtopic"), [2]),
        (("--kind", "login", "--outcome", "refused"), [3]),
        (("--since", "2025-11-26T12:01:00Z"), [3, 4]),
        (("--since", "2025-11-26T13:01:00+01:00"), [3, 4]),
        (("--since", "1s"), []),
        (("--limit", "2"), [3, 4]),
    ],
)
def test_filters(folder: Path, words: tuple[str, ...], seqs: list[int]) -> None:
    lines = run("list", folder, *words, "-o", "json").output.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == seqs
    whole = (folder / "audit" / "audit-00000001.jsonl").read_text().splitlines()
    assert all(line in whole for line in lines), "as they lie in the file"


@pytest.mark.parametrize(
    "words", [("--since", "yesterday"), ("--kind", "logins"), ("--outcome", "ok")]
)
def test_a_filter_that_nothing_can_meet_is_a_usage_error(
    folder: Path, words: tuple[str, ...]
) -> None:
    assert run("list", folder, *words).exit_code == 2


def test_a_terminal_gets_no_control_characters(folder: Path) -> None:
    """INV-CLA2."""
    output = run("list", folder).output
    assert "orders\\x1b[2J x" in output
    assert "\x1b" not in output
    assert "refused x7" in output
    assert "User:alice" in run("tail", folder, "-n", "1").output


def test_to_follow_ends_well_as_it_is_said_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--help: until Ctrl-C. A script that collects records goes by the exit code."""

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("region_broker.cli.audit.time.sleep", interrupted)
    result = run("tail", folder, "--follow", "-o", "json")
    assert result.exit_code == 0, result.output
    assert "Aborted" not in result.output
    assert len(result.output.splitlines()) == 4
