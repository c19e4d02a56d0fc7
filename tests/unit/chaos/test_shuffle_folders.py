"""What can be done to the folders of regions."""

from pathlib import Path
from random import Random

import pytest

from chaos.shuffle.folders import Folders
from chaos.shuffle.plan import Part

TOPIC = "0" * 32


def fixture(tmp_path: Path) -> Folders:
    for region in ("eu", "us"):
        log = tmp_path / region / "logs" / TOPIC / "0"
        log.mkdir(parents=True)
        (log / "segment").write_text(region)
        (tmp_path / region / "metadata.db").write_text(region)
        (tmp_path / region / "node.log").write_text(f"log of {region}")
    return Folders(tmp_path, Random(1))


def files(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


def test_INV_SHF1_an_emptied_folder_keeps_its_log(tmp_path: Path) -> None:
    fixture(tmp_path).empty("eu")
    assert files(tmp_path / "eu") == {"node.log": "log of eu"}


def test_a_copy_can_be_restored_again_and_again(tmp_path: Path) -> None:
    folders = fixture(tmp_path)
    before = files(tmp_path / "eu")
    folders.copy("eu", 1.0)
    for _ in range(2):
        (tmp_path / "eu" / "metadata.db").write_text("newer")
        folders.restore("eu", folders.copies("eu"))
        assert files(tmp_path / "eu") == before
    assert folders.copies("eu", before_s=1.0) == []


def test_swapping_twice_is_not_swapping(tmp_path: Path) -> None:
    folders = fixture(tmp_path)
    before = files(tmp_path)
    folders.swap("eu", "us")
    swapped = files(tmp_path)
    assert swapped["eu/metadata.db"] == "us"
    assert swapped["eu/node.log"] == "log of eu"
    folders.swap("eu", "us")
    assert files(tmp_path) == before


@pytest.mark.parametrize("part", list(Part))
def test_INV_SHF2_half_a_folder_is_made_whole_again(tmp_path: Path, part: Part) -> None:
    folders = fixture(tmp_path)
    before = files(tmp_path / "eu")
    assert folders.halve("eu", part)
    assert files(tmp_path / "eu") != before
    assert not folders.halve("eu", part)  # one half at a time
    assert folders.make_whole("eu")
    assert files(tmp_path / "eu") == before
    assert not folders.make_whole("eu")
