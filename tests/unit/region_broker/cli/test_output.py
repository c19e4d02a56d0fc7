"""Tables that can be read at any width and in any pipe."""

import json
import os

import click
import pytest
from click.testing import CliRunner

from region_broker.cli import output

ROWS = [
    {"topic": "orders", "high_watermark": 7, "note": "x" * 90},
    {"topic": "a\x1b[31m", "high_watermark": 1200, "note": "two\nlines"},
]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def at_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(output, "_columns", lambda: columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)


def test_a_pipe_gets_whole_lines_and_numbers_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_rows(ROWS, "table")
    head, first, second = printed(capsys)
    assert head.split() == ["topic", "high", "watermark", "note"]
    assert first.endswith("  " + "x" * 90)
    assert first.index("7") == second.index("1200") + 3
    assert "\\x1b[31m" in second
    assert "two lines" in second


def test_yes_and_no_are_words_for_people_and_values_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"key": "log_level", "may change": True}, {"key": "node_id", "may change": False}]
    output.print_rows(rows, "table")
    assert [line.split()[-1] for line in printed(capsys)[1:]] == ["yes", "no"]
    output.print_rows(rows, "json")
    assert json.loads(capsys.readouterr().out) == rows


def test_a_narrow_terminal_gets_names_and_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, 80)
    output.print_rows(ROWS, "table")
    lines = printed(capsys)
    assert lines[0] == "  topic           orders"
    assert lines[3] == ""
    assert lines[5] == "  high watermark  1200"


def test_a_table_that_fits_is_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, 80)
    output.print_rows([{"a": "x", "b": 1}], "table", title="things")
    assert [click.unstyle(line) for line in printed(capsys)] == ["things", "a  b", "x  1"]


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows([], "table", title="topics")
    output.print_rows([], "json", title="topics")
    assert capsys.readouterr().out == "(no topics)\n[]\n"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, "json")
    assert json.loads(capsys.readouterr().out) == ROWS
    output.print_object({"a": 1}, "json")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_fail_goes_to_stderr_with_its_exit_code() -> None:
    @click.command()
    def command() -> None:
        output.fail("no\x07pe", output.EXIT_NOT_FOUND)

    result = CliRunner().invoke(command)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "tidemark: no\\x07pe\n")


def test_progress_is_silent_within_the_first_second(capsys: pytest.CaptureFixture[str]) -> None:
    output.Progress().say("at once")
    assert capsys.readouterr().err == os.linesep * 0
