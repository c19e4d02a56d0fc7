"""Who a command says it is: options, environment, contexts; and tokens for the HTTP port."""

import codecs
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from region_broker.cli import token as token_module
from region_broker.cli.context.command import context
from region_broker.cli.context.credentials import (
    OPTIONS,
    credential_options,
    secret_in,
    security_of,
    variable_of,
)
from region_broker.cli.token import token
from region_broker.security.http_tokens import HttpTokens, Role, rows_of
from region_broker.security.login import LoginRefused, Security
from region_broker.workbench.credentials import present_as, presented


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CONTEXTS", str(tmp_path / "contexts.json"))
    for name in (
        *map(variable_of, OPTIONS),
        "TIDEMARK_PASSWORD",
        "TIDEMARK_HTTP_TOKEN",
        "TIDEMARK_CONTEXT",
    ):
        monkeypatch.delenv(name, raising=False)


def file_with(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def command(*words: str) -> Security:
    """Return as whom a command presents itself that was called with these words."""
    found: list[Security] = []

    @click.command()
    @credential_options
    @credential_options
    def asks() -> None:
        found.append(presented())

    ended = CliRunner().invoke(asks, words)
    present_as(Security())
    if not found:
        raise LoginRefused(ended.output)
    return found[0]


def ask(*words: str) -> Result:
    return CliRunner().invoke(context, words)


def test_INV_CCR1_contexts_keep_paths_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Security, "ssl_context", lambda _self: None)  # there is no such CA
    password = file_with(tmp_path / "pw", "open-sesame\n")
    monkeypatch.chdir(tmp_path)
    address = ("--bootstrap", "k:1", "--url", "https://k:2")
    assert (
        ask(
            "set", "live", *address, "--ca", "ca.pem", "--user", "alice", "--password-file", "pw"
        ).exit_code
        == 0
    )
    kept = (tmp_path / "contexts.json").read_text()
    assert json.loads(kept)["contexts"]["live"] == {
        "bootstrap": "k:1", "url": "https://k:2", "ca": str(tmp_path / "ca.pem"), "user": "alice", "password_file": password,
    }  # fmt: skip
    assert command() == Security(ca=str(tmp_path / "ca.pem"), user="alice", password="open-sesame")
    monkeypatch.setenv("TIDEMARK_PASSWORD", "another")
    shown = [ask("show"), ask("show", "live"), ask("show", "-o", "json"), ask("list")]
    assert all(each.exit_code == 0 for each in shown)
    assert not [
        each.output for each in shown if "open-sesame" in each.output or "another" in each.output
    ]
    assert json.loads(shown[2].output)["password"] == "(in TIDEMARK_PASSWORD)"
    assert ask("set", "live", "--user", "", "--password-file", "").exit_code == 0
    assert command().user == ""
    assert ask("show", "none").exit_code == 3
    assert {"password", "token", "http_token"}.isdisjoint(OPTIONS)


def test_INV_CCR2_an_option_beats_the_environment_which_beats_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Security, "ssl_context", lambda _self: None)
    first, second, third = (file_with(tmp_path / name, name) for name in ("one", "two", "three"))
    ask("set", "live", "--bootstrap", "k:1", "--url", "http://k:2", "--user", "carol", "--password-file", third,
        "--http-token-file", third, "--ca", "/c")  # fmt: skip
    assert command() == Security(user="carol", password="three", http_token="three", ca="/c")
    monkeypatch.setenv("TIDEMARK_HTTP_TOKEN_FILE", second)
    monkeypatch.setenv("TIDEMARK_CA", "/e")
    assert command() == Security(user="carol", password="three", http_token="two", ca="/e")
    found = command("--http-token-file", first, "--ca", "/o", "--mechanism", "SCRAM-SHA-256")
    assert (found.http_token, found.ca, found.mechanism) == ("one", "/o", "SCRAM-SHA-256")
    monkeypatch.setenv("TIDEMARK_HTTP_TOKEN", "direct")
    assert command().http_token == "direct"
    assert command("--http-token-file", first).http_token == "one", (
        "an option beats it all the same"
    )


def test_INV_CCR2_a_password_of_another_user_is_never_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carols, bobs = file_with(tmp_path / "c", "carols"), file_with(tmp_path / "b", "bobs")
    ask(
        "set",
        "live",
        "--bootstrap",
        "k:1",
        "--url",
        "http://k:2",
        "--user",
        "carol",
        "--password-file",
        carols,
    )
    with pytest.raises(LoginRefused, match="no password for user 'bob'"):
        command("--user", "bob")
    assert command("--user", "bob", "--password-file", bobs).password == "bobs"
    monkeypatch.setenv("TIDEMARK_USER", "alice")
    with pytest.raises(LoginRefused, match="no password for user 'alice'"):
        command()
    monkeypatch.setenv("TIDEMARK_PASSWORD", "alices")
    assert (command().user, command().password) == ("alice", "alices")
    with pytest.raises(LoginRefused, match="no password for user 'bob'"):
        command("--user", "bob")
    assert command("--user", "carol").password == "carols"


@pytest.mark.parametrize("text", ["", "a\nb", "x" * 5000, b"\xff\xfe"])
def test_a_file_without_one_line_is_no_secret(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LoginRefused):
        secret_in(str(path), "password")
    with pytest.raises(LoginRefused, match="cannot be read"):
        secret_in(str(tmp_path / "none"), "password")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_what_editors_put_around_a_secret_is_no_part_of_it(
    tmp_path: Path, mark: bytes, end: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(mark + b"tmt_s p" + end.encode())
    path.chmod(0o600)
    assert secret_in(str(path), "token") == "tmt_s p"


def test_INV_CCR3_a_file_that_others_may_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_with(tmp_path / "secret", "s")
    assert secret_in(path, "token") == "s"
    assert capsys.readouterr().err == ""
    for mode in (0o644, 0o640, 0o604):
        Path(path).chmod(mode)
        assert secret_in(path, "token") == "s"
        assert "chmod 600" in capsys.readouterr().err


def test_mistakes_are_usage_errors(tmp_path: Path) -> None:
    @click.command()
    @credential_options
    def asks() -> None:
        raise AssertionError

    for words in (
        ["--protocol", "TLS"],
        ["--user", "x"],
        ["--certificate", "c"],
        ["--password", "p"],
    ):
        assert CliRunner().invoke(asks, words).exit_code == 2, words
    with pytest.raises(SystemExit):
        security_of({"user": "x"}, {})


def tokens(*words: str, file: Path) -> Result:
    return CliRunner().invoke(token, [*words, "--file", str(file)])


def test_INV_CTK1_a_token_is_printed_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = tokens("create", "ops", "--role", "operator", file=path)
    text = made.stdout.strip()
    assert made.stderr == ""
    known = HttpTokens(path.read_bytes, print)
    known.look()
    row = known.row_of(text, 1)
    assert row is not None
    assert (row.name, row.role, row.expires_wall_ms) == ("ops", Role.OPERATOR, 0)
    listed = tokens("list", "-o", "json", file=path)
    assert [(each["name"], each["role"]) for each in json.loads(listed.output)] == [
        ("ops", "operator")
    ]
    for secret in (text, text[-43:], json.loads(path.read_text())["tokens"][0]["hash"]):
        assert secret not in listed.output + tokens("list", file=path).output
    assert text[-43:] not in path.read_text()


def test_INV_CTK2_who_could_read_the_file_still_can_when_root_has_changed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node runs as another user than who makes tokens."""
    path, given = tmp_path / "tokens.json", list[tuple[str, int, int]]()
    assert tokens("create", "a", "--role", "reader", file=path).exit_code == 0
    path.chmod(0o640)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def fchown(descriptor: int, *owner: int) -> None:
        uid, gid = owner
        given.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, uid, gid))

    monkeypatch.setattr(os, "fchown", fchown)
    found = path.stat()
    assert tokens("create", "b", "--role", "reader", file=path).exit_code == 0
    folder = tmp_path.stat()
    assert given == [
        ("tokens.json.lock", folder.st_uid, folder.st_gid),
        ("tokens.json.new", found.st_uid, found.st_gid),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_INV_CTK2_the_file_is_its_owner_s_and_changes_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"
    assert tokens("list", file=path).exit_code == 3
    gone = tokens("create", "a", "--role", "reader", file=path)
    assert (gone.exit_code, path.parent.exists()) == (3, False), "a slip of the pen makes no folder"
    path.parent.mkdir()
    for name in ("b", "a"):
        assert tokens("create", name, "--role", "reader", "--days", "2", file=path).exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert tokens("create", "a", "--role", "admin", file=path).exit_code == 2
    assert tokens("create", "a b", "--role", "admin", file=path).exit_code == 2
    assert tokens("create", "c", "--role", "root", file=path).exit_code == 2
    assert tokens("revoke", "c", file=path).exit_code == 3
    assert path.read_bytes() == before
    assert tokens("revoke", "b", file=path).exit_code == 0
    (row,) = rows_of(path.read_bytes())
    assert (row.name, row.expires_wall_ms - row.created_wall_ms) == ("a", 2 * 86_400_000)
    path.write_text("{}")
    for words in (("create", "d", "--role", "reader"), ("revoke", "a"), ("list",)):
        assert "cannot be used" in tokens(*words, file=path).output
    assert path.read_text() == "{}"


def test_INV_CTK2_what_the_owner_let_a_group_read_stays_so_and_nobody_else_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.json"
    for number, (given, left) in enumerate(((0o640, 0o640), (0o666, 0o640), (0o600, 0o600))):
        tokens("create", f"t{number}", "--role", "reader", file=path)
        path.chmod(given)
        tokens("create", f"u{number}", "--role", "reader", file=path)
        assert stat.S_IMODE(path.stat().st_mode) == left


def test_INV_CTK2_what_a_command_left_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.with_name("tokens.json.new").write_text("half")
    assert tokens("create", "a", "--role", "reader", file=path).exit_code == 0
    assert [row.name for row in rows_of(path.read_bytes())] == ["a"]


def test_INV_CTK2_one_command_at_a_time_and_what_is_replaced_is_durable_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "tokens.json", list[str]()
    flock, fsync, replace = fcntl.flock, os.fsync, Path.replace

    def locked(file: Any, how: int) -> None:
        done.append("locked")
        flock(file, how)

    def synced(descriptor: int) -> None:
        done.append("synced")
        fsync(descriptor)

    def replaced(fresh: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(fresh, target)

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    tokens("create", "a", "--role", "reader", file=path)
    assert done == ["locked", "synced", "replaced", "synced"], "its folder, too"


def test_no_more_tokens_are_made_than_a_node_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-HTK3: nodes would go on with the tokens of before, and the new one would open nothing."""
    path = tmp_path / "tokens.json"
    monkeypatch.setattr(token_module, "TOKEN_COUNT_MAX", 1)
    assert tokens("create", "a", "--role", "reader", file=path).exit_code == 0
    assert "are the most" in tokens("create", "b", "--role", "reader", file=path).output
    assert [row.name for row in rows_of(path.read_bytes())] == ["a"]


def test_a_file_of_certificates_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoginRefused, match=r"CA file .*/none\.pem cannot be read"):
        command("--ca", str(tmp_path / "none.pem"))
    other = file_with(tmp_path / "other", "no PEM")
    with pytest.raises(LoginRefused, match=r"CA file .*/other cannot be used"):
        command("--ca", other)
    with pytest.raises(LoginRefused, match=r"certificate .*/other with the key .* cannot be"):
        command("--certificate", other, "--certificate-key", other)
