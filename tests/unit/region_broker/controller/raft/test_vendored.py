"""How raftos comes into the tree (`.ci/vendor_raftos.py`): as it was released, with its licence, or not at all."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import region_broker.controller.raft
from tests.tidy.tree import ROOT

SCRIPT = ROOT / ".ci" / "vendor_raftos.py"
VENDORED = Path(region_broker.controller.raft.__file__).parent / "_vendor" / "raftos"


def run(script: Path, *arguments: str, index: str = "http://127.0.0.1:9/") -> tuple[int, str]:
    """Run the script without a package index to fetch from."""
    environment = {"PIP_INDEX_URL": index, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The script in a tree without raftos."""
    script = tmp_path / ".ci" / SCRIPT.name
    script.parent.mkdir()
    script.write_bytes(SCRIPT.read_bytes())
    return script


def test_what_is_in_place_is_sound_and_needs_no_network() -> None:
    assert run(SCRIPT) == (0, "")
    assert "Copyright (c) 2016 Alexander Zhebrak" in (VENDORED / "LICENSE").read_text("utf-8")


def test_another_archive_is_refused(elsewhere: Path, tmp_path: Path) -> None:
    other = tmp_path / "raftos-0.2.6.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("raftos-0.2.6/raftos/__init__.py", "")
    code, text = run(elsewhere, str(other))
    assert (code, "not raftos 0.2.6 as it was released" in text) == (1, True)
    assert not (tmp_path / "region_broker").exists()


@pytest.mark.slow
def test_without_a_network_it_says_what_to_do(elsewhere: Path, tmp_path: Path) -> None:
    code, text = run(elsewhere)
    assert code == 1
    for wanted in ("could not fetch", "PIP_INDEX_URL", "python .ci/vendor_raftos.py <the file>"):
        assert wanted in text
    assert not (tmp_path / "region_broker").exists()
