"""`tidemark cert`: a CA, certificates of nodes and users, their renewal and revocation, as files."""

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from region_broker.cli.cert import cert
from region_broker.security import authority_folder
from region_broker.security.authority_folder import AuthorityFolder

NODE = """
region = "eu"
node_id = 2
cluster_id = "c1"
data_dir = "data"
initial_primary_region = "eu"
[[regions]]
name = "eu"
ordinal = 0
[[regions.nodes]]
node_id = 1
kafka = "eu1.example.org:9092"
peer = "eu1.example.org:9094"
http = "eu1.example.org:9093"
[[regions.nodes]]
node_id = 2
kafka = "eu2.example.org:9092"
peer = "10.0.0.2:9094"
http = "[2001:db8::2]:9093"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("TIDEMARK_NODE_ID", "TIDEMARK_REGION"):
        monkeypatch.delenv(variable, raising=False)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cert, arguments)
    assert result.exit_code == code, result.output
    return result


def told(*arguments: str) -> Any:
    return json.loads(run(*arguments, "-o", "json").stdout)


def names() -> Sequence[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def openssl(*arguments: str) -> str:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, check=False, timeout=20
    )
    return done.stdout + done.stderr


def test_a_ca_a_node_and_a_user_from_nothing() -> None:
    Path("node.toml").write_text(NODE)
    assert told("init", "--name", "Example")["serves_as"] == "CA"
    node = told("issue", "--config", "node.toml", "--host", "eu2.internal")
    assert node["serves_as"] == "node 2 of region eu in cluster c1"
    assert node["names"] == [
        "eu2.example.org", "10.0.0.2", "2001:db8::2", "eu2.internal", "tidemark:node/c1/eu/2",
    ]  # fmt: skip
    user = told("issue", "--user", "alice", "--out", "for/alice", "--days", "90")
    assert user["certificate"] == "for/alice/alice.pem"
    assert "User:CN=bob, where" in run("issue", "--user", "bob").stderr
    for path in ("tidemark-ca/ca-key.pem", "eu-2-key.pem", "for/alice/alice-key.pem"):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    for certificate, purpose in (
        ("eu-2.pem", "sslserver"),
        ("eu-2.pem", "sslclient"),
        ("for/alice/alice.pem", "sslclient"),
    ):
        said = openssl("verify", "-x509_strict", "-CAfile", "tidemark-ca/ca.pem", "-CRLfile", "tidemark-ca/crl.pem",
                       "-crl_check", "-purpose", purpose, certificate)  # fmt: skip
        assert said == f"{certificate}: OK\n"


def test_further_listeners_are_met_by_their_names_too() -> None:
    run("init")
    listeners = '[[listeners]]\nname = "OUTSIDE"\nbind = "0.0.0.0:19092"\nadvertised = "kafka.example.com:443"\nsecurity_protocol = "SSL"\n'
    tls = 'tls_certificate = "eu-2.pem"\ntls_key = "eu-2-key.pem"\ntls_ca = "tidemark-ca/ca.pem"\ntls_crl = "tidemark-ca/crl.pem"\n'
    alone = re.sub(r"\[\[regions.nodes\]\]\nnode_id = 1\n(.*\n){3}", "", NODE)
    Path("node.toml").write_text(tls + alone + listeners)
    assert "kafka.example.com" in told("issue", "--config", "node.toml")["names"]
    shown = told("show", "--config", "node.toml")
    assert [row["file"] for row in shown] == [
        "eu-2.pem",
        "tidemark-ca/ca.pem",
        "tidemark-ca/crl.pem",
    ]
    Path("plain.toml").write_text(NODE)
    assert "names no files of TLS" in run("show", "--config", "plain.toml", code=1).stderr


def test_a_dry_run_writes_nothing() -> None:
    Path("node.toml").write_text(NODE)
    run("init", "--dry-run")
    assert names() == ["node.toml"]
    run("init")
    run("issue", "--user", "alice")
    before = {name: Path(name).read_bytes() for name in names()}
    run("issue", "--config", "node.toml", "--out", "elsewhere", "--dry-run")
    run("renew", "alice.pem", "--new-key", "--dry-run")
    run("revoke", "alice.pem", "--dry-run")
    assert {name: Path(name).read_bytes() for name in names()} == before
    assert not Path("elsewhere").exists()


def test_nothing_is_replaced_unasked() -> None:
    run("init")
    assert "choose another folder" in run("init", code=1).stderr
    assert "choose another folder" in run("init", "--dry-run", code=1).stderr
    run("issue", "--user", "alice")
    before = Path("alice-key.pem").read_bytes()
    assert "alice.pem is there already" in run("issue", "--user", "alice", code=1).stderr
    Path("alice.pem").unlink()
    assert "alice-key.pem is there already" in run("issue", "--user", "alice", code=1).stderr
    assert Path("alice-key.pem").read_bytes() == before


def test_a_renewal_changes_one_file_and_with_a_new_key_two() -> None:
    run("init")
    run("issue", "--user", "alice")
    key, former = Path("alice-key.pem").read_bytes(), Path("alice.pem").read_bytes()
    [row] = told("renew", "alice.pem", "--days", "700")
    assert row["days_left"] in {699, 700}
    assert Path("alice-key.pem").read_bytes() == key
    assert Path("alice.pem").read_bytes() != former
    run("renew", "alice.pem", "--new-key")
    assert Path("alice-key.pem").read_bytes() != key
    assert stat.S_IMODE(Path("alice-key.pem").stat().st_mode) == 0o600
    public = openssl("x509", "-in", "alice.pem", "-noout", "-pubkey")
    assert openssl("pkey", "-in", "alice-key.pem", "-pubout") == public


def test_a_file_that_holds_the_key_too_is_not_replaced_by_the_certificate_alone() -> None:
    """As Java's clients take it (`ssl.keystore.type=PEM`): the key is nowhere else."""
    run("init")
    run("issue", "--user", "alice")
    both = Path("alice-key.pem").read_bytes() + Path("alice.pem").read_bytes()
    Path("keystore-key.pem").write_bytes(both)
    assert "holds a private key, too" in run("renew", "keystore-key.pem", code=1).stderr
    assert Path("keystore-key.pem").read_bytes() == both


def test_INV_CCH2_a_renewed_file_keeps_its_mode_and_its_owner() -> None:
    run("init")
    run("issue", "--user", "alice")
    Path("alice.pem").chmod(0o640)
    owner = 0
    if os.geteuid() == 0:
        owner = 4711
        for name in ("alice.pem", "alice-key.pem"):
            os.chown(name, owner, owner)
    run("renew", "alice.pem", "--new-key")
    found = [Path(name).stat() for name in ("alice.pem", "alice-key.pem")]
    assert [stat.S_IMODE(each.st_mode) for each in found] == [0o640, 0o600]
    assert not owner or {each.st_uid for each in found} == {owner}


def test_a_renewal_keeps_the_certificates_above_the_own_one() -> None:
    run("init")
    run("issue", "--user", "alice")
    above = Path("tidemark-ca/ca.pem").read_bytes()
    Path("alice.pem").write_bytes(Path("alice.pem").read_bytes() + above)
    run("renew", "alice.pem")
    assert Path("alice.pem").read_bytes().endswith(above)


def test_one_refusal_and_nothing_is_renewed() -> None:
    run("init")
    run("init", "--ca", "other")
    run("issue", "--user", "alice")
    run("issue", "--user", "bob", "--ca", "other")
    before = Path("alice.pem").read_bytes()
    assert "bob.pem: it was signed by" in run("renew", "alice.pem", "bob.pem", code=1).stderr
    assert Path("alice.pem").read_bytes() == before
    run("renew", "bob.pem", "--former-ca", "other/ca.pem")
    assert openssl("verify", "-CAfile", "tidemark-ca/ca.pem", "bob.pem") == "bob.pem: OK\n"


def test_a_user_is_revoked_with_all_that_was_issued_to_it() -> None:
    run("init")
    run("issue", "--user", "alice")
    run("renew", "alice.pem")
    run("issue", "--user", "bob")
    assert [row["revoked"] for row in told("revoke", "--user", "alice")] == ["now", "now"]
    assert [row["revoked"] for row in told("revoke", "alice.pem")] == ["was already"]
    assert "nothing takes its place" in run("renew", "alice.pem", code=1).stderr
    rows = {
        row["file"]: row["by_this_ca"]
        for row in told("show", "alice.pem", "bob.pem", "--ca", "tidemark-ca")
    }
    assert rows == {"alice.pem": "yes, REVOKED", "bob.pem": "yes"}
    check = (
        "verify",
        "-crl_check",
        "-CAfile",
        "tidemark-ca/ca.pem",
        "-CRLfile",
        "tidemark-ca/crl.pem",
    )
    assert "certificate revoked" in openssl(*check, "alice.pem")
    assert openssl(*check, "bob.pem") == "bob.pem: OK\n"


def test_what_was_not_written_whole_can_be_revoked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-AUF3"""
    run("init")
    real = authority_folder.write

    def full(path: Path, *more: Any, **named: Any) -> None:
        if path.name == "alice.pem":
            raise OSError(28, "No space left on device", str(path))
        real(path, *more, **named)

    monkeypatch.setattr(authority_folder, "write", full)
    assert (
        "alice.pem cannot be used: No space left" in run("issue", "--user", "alice", code=1).stderr
    )
    assert Path("alice-key.pem").exists()
    assert [row["revoked"] for row in told("revoke", "--user", "alice")] == ["now"]


def test_INV_AUF4_a_revocation_reads_and_writes_within_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two commands at once each write the list that they have read, and one revocation is gone."""
    run("init")
    run("issue", "--user", "alice")
    held: list[str] = []
    locked, crl = AuthorityFolder.locked, AuthorityFolder.crl
    replace_crl = AuthorityFolder.replace_crl

    @contextmanager
    def turn(folder: AuthorityFolder) -> Iterator[None]:
        with locked(folder):
            held.append("begin")
            yield
            held.append("end")

    def read(folder: AuthorityFolder) -> x509.CertificateRevocationList:
        held.append("read")
        return crl(folder)

    def write(folder: AuthorityFolder, made: x509.CertificateRevocationList) -> None:
        held.append("write")
        replace_crl(folder, made)

    monkeypatch.setattr(AuthorityFolder, "locked", turn)
    monkeypatch.setattr(AuthorityFolder, "crl", read)
    monkeypatch.setattr(AuthorityFolder, "replace_crl", write)
    run("revoke", "--user", "alice")
    assert held == ["begin", "read", "write", "end"]


def test_INV_AUF4_what_another_command_revokes_meanwhile_is_not_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A renewal has looked at the list. 2. A revocation comes before it into the folder. 3. The renewal is next."""
    run("init")
    run("issue", "--user", "alice")
    run("issue", "--user", "bob")
    before = names()
    contents = Path("alice.pem").read_bytes(), Path("bob.pem").read_bytes()
    locked = AuthorityFolder.locked

    @contextmanager
    def behind_a_revocation(folder: AuthorityFolder) -> Iterator[None]:
        monkeypatch.setattr(AuthorityFolder, "locked", locked)
        run("revoke", "--user", "alice")
        with locked(folder):
            yield

    monkeypatch.setattr(AuthorityFolder, "locked", behind_a_revocation)
    assert "alice.pem: " in run("renew", "bob.pem", "alice.pem", code=1).stderr
    assert (Path("alice.pem").read_bytes(), Path("bob.pem").read_bytes()) == contents
    assert names() == before, "nothing was issued"


def test_what_cannot_be_revoked_is_said() -> None:
    run("init")
    run("init", "--ca", "other")
    run("issue", "--user", "bob", "--ca", "other")
    assert "cannot revoke it" in run("revoke", "bob.pem", code=1).stderr
    assert "nothing was issued to user 'carol'" in run("revoke", "--user", "carol", code=3).stderr
    assert "holds nothing of serial number" in run("revoke", "--serial", "ab:cd", code=3).stderr
    assert "is no serial number" in run("revoke", "--serial", "xyz", code=2).stderr
    serial = told("show", "bob.pem")[0]["serial"]
    assert told("revoke", "--ca", "other", "--serial", serial)[0]["revoked"] == "now"


def test_show_tells_what_there_is_and_no_key() -> None:
    run("init")
    run("issue", "--user", "alice")
    result = run(
        "show",
        "alice.pem",
        "alice-key.pem",
        "tidemark-ca/crl.pem",
        "tidemark-ca/ca.pem",
        "-o",
        "json",
    )
    assert [row["serves_as"] for row in json.loads(result.stdout)] == [
        "client",
        "CRL: 0 revoked",
        "CA",
    ]
    assert "alice-key.pem holds a key: not shown" in result.stderr
    everything = told("show", "--ca", "tidemark-ca")
    assert [row["serves_as"] for row in everything] == ["CA", "client"]
    assert re.search(r"days left +36[45]\n", run("show", "alice.pem").stdout)
    body = Path("alice-key.pem").read_text().splitlines()[1]
    assert body not in result.output


@pytest.mark.parametrize("name", ["ca.pem", "crl.pem"])
def test_show_says_what_it_cannot_read(name: str) -> None:
    run("init")
    lines = (Path("tidemark-ca") / name).read_text().splitlines()
    Path("broken.pem").write_text("\n".join([lines[0], "AAAA", lines[-1]]))
    assert "broken.pem holds" in run("show", "broken.pem", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["issue"], 2, "either a node by --config or a user by --user"),
        (["issue", "--user", "a", "--config", "node.toml"], 2, "either a node"),
        (["issue", "--user", "a", "--host", "x"], 2, "a user has no address"),
        (["issue", "--user", "a"], 1, "make one with tidemark cert init --ca tidemark-ca"),
        (["show"], 2, "name files"),
        (["show", "nothing.pem"], 3, "nothing.pem is not there"),
        (["revoke"], 2, "name what is revoked"),
        (["renew", "nothing.pem"], 1, "holds no CA"),
        (["init", "--days", "0"], 1, "1 to 36500"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], code: int, said: str) -> None:
    assert said in run(*arguments, code=code).stderr


def test_files_of_users_stay_where_they_belong() -> None:
    run("init")
    made = told("issue", "--user", "../../evil/User", "--out", "made")
    assert made["certificate"] == "made/_.._evil_User.pem"
    assert Path(made["certificate"]).exists()
    assert told("show", made["certificate"])[0]["subject"] == "CN=../../evil/User"
