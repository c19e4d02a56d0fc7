"""Contexts: what beats what, and what becomes of a file that cannot be read."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from region_broker.cli.context.command import context
from region_broker.cli.context.store import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_URL,
    Context,
    ContextError,
    chosen,
)
from region_broker.cli.region_client import parse_urls


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "contexts.json"
    monkeypatch.setenv("TIDEMARK_CONTEXTS", str(path))
    monkeypatch.delenv("TIDEMARK_CONTEXT", raising=False)
    monkeypatch.delenv("TIDEMARK_URL", raising=False)
    return path


def ask(*words: str) -> Result:
    return CliRunner().invoke(context, words)


def test_without_contexts_commands_mean_both_regions_of_the_development_cluster(file: Path) -> None:
    assert not file.exists()
    assert chosen() == Context(bootstrap=DEFAULT_BOOTSTRAP, url=DEFAULT_URL)
    kafka = [address.split(":")[1] for address in DEFAULT_BOOTSTRAP.split(",")]
    http = [address.rsplit(":", 1)[1] for address in DEFAULT_URL.split(",")]
    assert [int(port) + 1 for port in kafka] == [int(port) for port in http]


def test_the_first_context_counts_until_another_is_used(file: Path) -> None:
    assert ask("set", "live", "--bootstrap", "k:1", "--url", "http://k:2").exit_code == 0
    assert ask("set", "test", "--bootstrap", "t:1", "--url", "http://t:2").exit_code == 0
    assert chosen() == Context(bootstrap="k:1", url="http://k:2")
    assert ask("use", "test").exit_code == 0
    assert ask("set", "test", "--bootstrap", "t:3").exit_code == 0
    assert chosen() == Context(bootstrap="t:3", url="http://t:2")
    rows = json.loads(ask("list", "-o", "json").stdout)
    assert [(row["context"], row["current"]) for row in rows] == [("live", False), ("test", True)]
    assert ask("delete", "test").exit_code == 0
    assert chosen() == Context()


def test_INV_CTX1_option_environment_context(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("set", "live", "--bootstrap", "k:1", "--url", "http://context:1")
    ask("set", "other", "--bootstrap", "k:1", "--url", "http://other:1")
    assert parse_urls(None) == ["http://context:1"]
    monkeypatch.setenv("TIDEMARK_CONTEXT", "other")
    assert parse_urls(None) == ["http://other:1"]
    monkeypatch.setenv("TIDEMARK_URL", "http://environment:1")
    assert parse_urls(None) == ["http://environment:1"]
    assert parse_urls("http://option:1") == ["http://option:1"]


@pytest.mark.parametrize("text", ["", "[]", '{"contexts": {"a": {"x": 1}}, "current": ""}', "{}"])
def test_INV_CTX2_a_file_that_cannot_be_read_is_left_alone(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ContextError, match="does not hold contexts"):
        chosen()
    assert ask("set", "live", "--bootstrap", "k:1", "--url", "http://k:2").exit_code == 2
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("use", "gone"), 3, "there is no context 'gone'; there are: live"),
        (("delete", "gone"), 3, "there is no context"),
        (("set", "a b"), 2, "is no name"),
        (("set", "live", "--url", "nothing"), 2, "is not http://host:port"),
        (("set", "live", "--bootstrap", "nothing"), 2, "'nothing' is not host:port"),
        (("set", "x", "--bootstrap", "k:1"), 2, "give both --bootstrap and --url"),
        (("set", "live", "--protocol", "TLS"), 2, "'TLS' is none of PLAINTEXT, SSL"),
        (("set", "live", "--mechanism", "GSSAPI"), 2, "'GSSAPI' is none of SCRAM-SHA-512"),
    ],
)
def test_mistakes_change_nothing(file: Path, words: tuple[str, ...], code: int, says: str) -> None:
    ask("set", "live", "--bootstrap", "k:1", "--url", "http://k:2")
    before = file.read_text()
    result = ask(*words)
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert file.read_text() == before
