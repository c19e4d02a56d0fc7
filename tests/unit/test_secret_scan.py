"""What a test leaves is looked through: a planted secret fails the test that left it, wherever it is, and is not shown."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fixtures import secret_scan

TESTS = """
import logging
import pytest
from tests.fixtures.certificates import key_pem, leaf_key
from tests.fixtures.secret_scan import noted

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nodes")

def test_in_a_log(tmp_path):
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "node.log").write_text("password=planted-1")

def test_beside_the_file_that_may_have_it(tmp_path):
    (tmp_path / "http.token").write_text("planted-token-2")
    (tmp_path / "metadata.db").write_bytes(b"....planted-token-2....")

def test_the_number_of_a_key(tmp_path):
    (tmp_path / "own-key.pem").write_bytes(key_pem(leaf_key()))
    number = leaf_key().private_numbers().private_value
    (tmp_path / "journal").write_bytes(b"x" * 100 + number.to_bytes(32, "big"))

def test_in_a_module(folder):
    (folder / "audit.jsonl").write_text(noted("planted-word-3").encode().hex())

def test_printed():
    print("password=planted-4")

def test_logged():
    logging.getLogger("x").warning("the words were %s", noted("planted-5"))

def test_nothing(tmp_path):
    (tmp_path / "password").write_text("kept where it may be")
    (tmp_path / "node.log").write_text("password=***")
"""


def run(folder: Path, how: str) -> str:
    (folder / "test_planting.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-rE", "--rootdir", str(folder),
             "--basetemp", str(folder / "base"), str(folder / "test_planting.py")]  # fmt: skip
    environment = {**os.environ, secret_scan.VARIABLE: how, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=folder).stdout  # fmt: skip


def test_what_is_planted_fails_the_test_that_left_it(tmp_path: Path) -> None:
    said = run(tmp_path, "all")
    lines = said.splitlines()
    for place, kind in (
        ("test_in_a_log0/eu/node.log at 0", "password in a setting"),
        ("test_beside_the_file_that_may_0/metadata.db at 4", "a known secret"),
        ("test_the_number_of_a_key0/journal at 100", "a known secret"),
        ("nodes0/audit.jsonl at 0", "a known secret"),
        ("test_planting.py::test_printed, Captured stdout call at 0", "password in a setting"),
    ):
        assert any(line.endswith(f"{place}: {kind}") for line in lines), (place, said)
    assert "test_logged, Captured log call" in said
    assert "7 passed, 6 errors" in said
    shown = said.split("short test summary")[1]
    assert "planted-" not in shown.replace("test_planting", "")


def test_no_test_that_has_a_secret_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret_scan.VARIABLE, raising=False)
    taken = re.compile(
        rf"^(?:from|import) (?:{'|'.join(map(re.escape, secret_scan.SOURCES))})\b", re.MULTILINE
    )
    using = [
        path.as_posix()
        for path in Path("tests").rglob("test_*.py")
        if taken.search(path.read_text())
    ]
    assert len(using) > len(secret_scan.SOURCES)
    left_out = {path for path in using if not secret_scan.is_scanned(path)} - {
        *secret_scan.PLANTING
    }
    assert left_out == set(), "add them to SCANNED"


def test_what_a_node_says_at_metrics_is_saved_beside_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cast(
        "Any",
        SimpleNamespace(
            running=["eu"],
            data_dir=lambda name: tmp_path / name,
            node=lambda name: SimpleNamespace(http=f"http://{name}"),
        ),
    )
    (tmp_path / "eu").mkdir()
    monkeypatch.setattr(secret_scan, "metrics_text", lambda url: f"password=planted-by-{url}")
    secret_scan.save_metrics(cluster)
    assert secret_scan.found_in([tmp_path]) == [
        f"{tmp_path}/eu/metrics.txt at 0: password in a setting"
    ]
    (tmp_path / "eu" / "metrics.txt").unlink()


def test_none_is_looked_through_where_that_is_said(tmp_path: Path) -> None:
    assert "7 passed" in run(tmp_path, "none")
    assert "error" not in run(tmp_path, "some")


@pytest.mark.parametrize("path", ["tests/process/test_tls.py", "tests/unit/region_broker/security/audit/test_recorder.py"])  # fmt: skip
def test_tests_of_security_are_always_looked_through(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.delenv(secret_scan.VARIABLE, raising=False)
    assert secret_scan.is_scanned(path)
    assert not secret_scan.is_scanned("tests/unit/idempotency/test_window.py")
    for glob in secret_scan.SCANNED:
        assert list(Path().glob(glob)), f"no test is meant by {glob}"
