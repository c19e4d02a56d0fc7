"""`tidemark reconcile`: options, exit codes and what is printed; the local engine, so no Java is needed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from region_broker.cli import reconcile as command
from tests.reconciliation.faults import FAULTS, sound_pair
from tests.reconciliation.two_regions import Pair


def invoke(folder: Path, pair: Pair, *options: str, job: str = "all") -> Result:
    source, mirror = pair.write(folder)
    return CliRunner().invoke(
        command.reconcile,
        [job, "--primary", str(source.data_dir), "--mirror", mirror.data_dir.as_uri(),
         "--engine", "local", "--out", str(folder / "out"), *options],
    )  # fmt: skip


def fault(name: str) -> Pair:
    return next(fault for fault in FAULTS if fault.name == name).build()


@pytest.mark.parametrize("job", ["verify", "transactions", "all"])
def test_a_sound_pair_ends_with_0(tmp_path: Path, job: str) -> None:
    result = invoke(tmp_path, sound_pair(), job=job)
    assert result.exit_code == 0, result.output
    assert "100 %" in result.output


def test_differences_end_with_1_and_are_listed(tmp_path: Path) -> None:
    result = invoke(tmp_path, fault("batch_removed"))
    assert result.exit_code == 1
    assert "missing" in result.output
    assert "clicks-0" in result.output


def test_json_is_one_document_with_the_exit_code_in_it(tmp_path: Path) -> None:
    result = invoke(tmp_path, fault("marker_flipped"), "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exit_code"]) == (1, 1)
    assert document["verdict"] == "differences"
    assert {entry["kind"] for entry in document["findings"]} == {"divergent", "torn_txn"}
    assert (Path(document["run_dir"]) / "report.html").is_file()


def test_transactions_alone_reports_what_readers_see(tmp_path: Path) -> None:
    result = invoke(tmp_path, fault("aborted_shown"), "-o", "json", job="transactions")
    assert json.loads(result.stdout)["roots"] == {"aborted_visible": 1}


def test_a_budget_exceeded_ends_with_4(tmp_path: Path) -> None:
    assert invoke(tmp_path, fault("mirror_behind"), "--rpo-records", "0").exit_code == 4


def test_nothing_to_compare_ends_with_3(tmp_path: Path) -> None:
    assert invoke(tmp_path, sound_pair(), "--topics", "nothing").exit_code == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--primary", "/nowhere", "--mirror", "/nowhere"], "no such folder"),
        (["--primary", "http://localhost:8080", "--mirror", "/"], "data folder"),
        (["--primary", "{tmp}", "--mirror", "{tmp}"], "data_dir"),
        (["--primary", "{tmp}"], "--mirror"),
    ],
)
def test_wrong_inputs_end_with_2_and_say_what_to_name(
    tmp_path: Path, options: list[str], said: str
) -> None:
    filled = [option.format(tmp=tmp_path) for option in options]
    result = CliRunner().invoke(command.reconcile, ["all", "--engine", "local", *filled])
    assert result.exit_code == 2
    assert said in result.output


def test_a_malformed_cut_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"orders/0": "seven"}')
    result = invoke(tmp_path, sound_pair(), "--cut", str(path))
    assert result.exit_code == 2
    assert "topic/partition" in result.output


@pytest.mark.parametrize("major", [None, 11])
def test_without_java_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int | None
) -> None:
    monkeypatch.setattr(command, "java_major_version", lambda: major)
    source, mirror = sound_pair().write(tmp_path)
    result = CliRunner().invoke(
        command.reconcile,
        ["verify", "--primary", str(source.data_dir), "--mirror", str(mirror.data_dir)],
    )
    assert result.exit_code == 2
    assert "--engine local" in result.output
    assert "openjdk" in result.output


def test_an_error_of_our_own_ends_with_70_never_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(command, "_outcome", broken)
    assert invoke(tmp_path, sound_pair()).exit_code == 70
