"""What the demo refuses before it starts anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from region_broker.cli.demo.command import demo


def refused(*words: str) -> str:
    result = CliRunner().invoke(demo, words)
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize("rows", ["0", "-1", "many", "1.5"])
def test_rows_are_a_number_from_one_on(rows: str) -> None:
    assert "neither a number from 1 on nor 'all'" in refused("--rows", rows)


@pytest.mark.parametrize("workers", ["0", "65"])
def test_there_is_a_worker_and_not_a_crowd(workers: str) -> None:
    assert "1<=x<=64" in refused("--workers", workers)


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert "is not empty" in refused("--data-dir", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_report_without_a_place_is_noticed_first(tmp_path: Path) -> None:
    assert "there is no folder" in refused("--report", str(tmp_path / "not" / "there.html"))


def test_two_nodes_are_none_to_show_anything_with() -> None:
    assert "two nodes cannot go on without one of them" in refused("--nodes", "2")
