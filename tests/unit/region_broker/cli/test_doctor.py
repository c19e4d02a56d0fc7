"""`tidemark doctor`: what is missing, how to mend it, and whether the broker can do without."""

import json
import shutil
from collections.abc import Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from region_broker.cli import config_compare
from region_broker.cli.doctor import doctor
from region_broker.security.certificates import key_pem, new_key
from region_broker.security.tls_contents import TlsFiles
from region_broker.workbench.credentials import present_as, presented
from region_broker.workbench.node_http import ApiError
from tests.fixtures.certificates import (
    LONG_AGO,
    NOW,
    authority,
    crl_of,
    node_certificate,
    put,
)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def examine(folder: Path, *options: str) -> tuple[Result, Mapping[str, Any]]:
    result = CliRunner().invoke(doctor, ["--data-dir", str(folder), "-o", "json", *options])
    return result, {row["check"]: row for row in json.loads(result.stdout)}


def with_java(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_missing_java_is_optional_and_says_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result, rows = examine(tmp_path)
    assert result.exit_code == 0, result.output
    row = rows["Java 17+ (for Spark)"]
    assert (row["state"], row["found"]) == ("optional", "none")
    assert "apt-get install" in row["mend"]
    assert "--engine local" in row["mend"]


@pytest.mark.parametrize(
    ("version", "state"), [("11.0.2", "optional"), ("17.0.9", "ok"), ("21", "ok")]
)
def test_java_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    with_java(monkeypatch, tmp_path, version)
    _, rows = examine(tmp_path)
    row = rows["Java 17+ (for Spark)"]
    assert (row["state"], row["found"]) == (state, version.partition(".")[0])
    assert bool(row["mend"]) == (state != "ok")


def test_a_java_home_that_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    result, rows = examine(tmp_path)
    assert result.exit_code == 0
    assert rows["Java 17+ (for Spark)"]["found"] == "none"


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10, 10, 0))
    result, rows = examine(tmp_path)
    assert result.exit_code == 1
    assert rows["free disk space"]["state"] == "MISSING"
    assert "free some space" in rows["free disk space"]["mend"]


@pytest.mark.parametrize(
    ("free_bytes", "state"), [(4 << 30, "MISSING"), (6 << 30, "ok")], ids=["refused", "enough"]
)
def test_the_room_that_a_configuration_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, state: str
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        f'region = "eu"\ncluster_id = "c1"\ndata_dir = "{tmp_path}"\nhome_region = "eu"\n'
        f"disk_free_bytes_min = {5 << 30}\n"
        '[[regions]]\nname = "eu"\nordinal = 0\nnode_id = 1\nkafka = "h:1"\npeer = "h:2"\nhttp = "h:3"\n'
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(8 << 30, 0, free_bytes))
    result = CliRunner().invoke(doctor, ["--config", str(path), "-o", "json"])
    (row,) = [row for row in json.loads(result.stdout) if row["check"] == "free disk space"]
    assert row["state"] == state, result.output
    assert ("disk_free_bytes_min" in row["found"]) == (state == "MISSING")
    assert CliRunner().invoke(doctor, ["--config", str(tmp_path / "none.toml")]).exit_code == 2


def test_a_missing_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in {"kio", "pyspark"}:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda _name: ["kio==0.6.5", "pyspark; extra == 'x'"])
    result, rows = examine(tmp_path)
    assert result.exit_code == 1
    assert rows["Python packages"]["found"] == "missing: kio"
    assert rows["PySpark (reconcile)"]["state"] == "optional"
    assert "tidemark[reconcile]" in rows["PySpark (reconcile)"]["mend"]


def test_a_data_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    result, rows = examine(tmp_path / "not" / "yet")
    assert result.exit_code in {0, 1}
    assert "ms per fdatasync" in rows["disk sync"]["found"]
    missing = rows["data folder"]
    assert missing["state"] == "optional"
    assert f"{tmp_path / 'not' / 'yet'} does not exist: {tmp_path} was measured" in missing["found"]
    assert "mount its disk" in missing["mend"]
    assert not (tmp_path / "not").exists()


def test_a_data_folder_that_is_there_and_one_that_is_a_file(tmp_path: Path) -> None:
    _, rows = examine(tmp_path)
    assert rows["data folder"]["state"] == "ok"
    (tmp_path / "file").write_bytes(b"")
    result, rows = examine(tmp_path / "file")
    assert result.exit_code == 1
    assert rows["data folder"]["state"] == "MISSING"


def test_a_disk_that_takes_no_writes_is_an_error() -> None:
    result, rows = examine(Path("/proc/self"))
    assert result.exit_code == 1
    assert rows["disk sync"]["state"] == "MISSING"
    assert "cannot be written to" in rows["disk sync"]["found"]
    assert "mount it for writing" in rows["disk sync"]["mend"]


LISTENING = """
region = "eu"
cluster_id = "c1"
node_id = 1
data_dir = "/nowhere"
initial_primary_region = "eu"
[[listeners]]
name = "OUTSIDE"
bind = "0.0.0.0:9095"
advertised = "h1:9095"
security_protocol = "PLAINTEXT"
[[regions]]
name = "eu"
ordinal = 0
[[regions.nodes]]
node_id = 1
kafka = "h1:1"
peer = "h1:2"
http = "h1:3"
[[regions.nodes]]
node_id = 2
kafka = "h2:1"
peer = "h2:2"
http = "h2:3"
advertised = { OUTSIDE = "h2:9095" }
"""


def test_doctor_asks_nodes_as_the_context_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a port that is shut tells it nothing."""
    path = tmp_path / "node.toml"
    path.write_text(LISTENING)
    token = tmp_path / "token"
    token.write_text("tmt_x\n")
    monkeypatch.setenv("TIDEMARK_HTTP_TOKEN_FILE", str(token))
    asked_as: list[str] = []

    def request(*_: Any, **_more: Any) -> Any:
        asked_as.append(presented().http_token)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(config_compare, "request", request)
    before = presented()
    examine(tmp_path, "--config", str(path))
    present_as(before)
    assert set(asked_as) == {"tmt_x"}


def test_a_node_that_no_listener_leads_to_is_named_as_far_as_nodes_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(LISTENING)
    view = {"nodes": [{"node_id": 1}, {"node_id": 2}], "awaited": []}
    running: dict[str, Any] = {}

    def request(url: str, _method: str, route: str, **_more: Any) -> Any:
        assert route == "/v1/cluster"
        if url not in running:
            raise ConnectionRefusedError(111, "Connection refused")
        return running[url]

    def refusing(*_: Any, **_more: Any) -> Any:
        raise ApiError(401, "unknown-caller", "say who you are")

    monkeypatch.setattr(config_compare, "request", request)
    row = examine(tmp_path, "--config", str(path))[1]["listeners"]
    assert (row["state"], row["found"].partition(";")[0]) == ("ok", "no node answers")
    monkeypatch.setattr(config_compare, "request", refusing)
    row = examine(tmp_path, "--config", str(path))[1]["listeners"]
    assert row["found"].startswith("node 1 runs, and does not say: say who you are;")
    monkeypatch.setattr(config_compare, "request", request)
    running["http://h2:3"] = view
    row = examine(tmp_path, "--config", str(path))[1]["listeners"]
    assert (row["state"], row["found"]) == ("ok", "each node of the region is met")
    running["http://h1:3"] = view | {"awaited": [{"node_id": 4}]}
    row = examine(tmp_path, "--config", str(path))[1]["listeners"]
    assert (row["state"], row["found"]) == ("optional", "OUTSIDE does not reach node 4")
    assert 'advertised = { OUTSIDE = "host:port" }' in row["mend"]
    secured = (
        'http_security_protocol = "SSL"\ntls_certificate = "own.pem"\ntls_key = "own-key.pem"\n'
    )
    path.write_text(secured + LISTENING)
    running["https://h1:3"] = view
    row = examine(tmp_path, "--config", str(path))[1]["listeners"]
    assert (row["state"], row["found"]) == ("ok", "each node of the region is met")


# --- files of TLS --------------------------------------------------------------------------------


def of_tls(folder: Path, files: TlsFiles, more: str = "") -> tuple[Result, Mapping[str, Any]]:
    """Return what doctor says of a node with these files, and with further keys."""
    path = folder / "node.toml"
    path.write_text(
        f'region = "eu"\ncluster_id = "c1"\ndata_dir = "{folder}"\ninitial_primary_region = "eu"\n'
        f'tls_certificate = "{files.certificate}"\ntls_key = "{files.key}"\ntls_ca = "{files.ca}"\ntls_crl = "{files.crl}"\n{more}'
        '[[regions]]\nname = "eu"\nordinal = 0\nnode_id = 1\nkafka = "h:1"\npeer = "h:2"\nhttp = "h:3"\n'
    )
    result = CliRunner().invoke(doctor, ["--config", str(path), "-o", "json"])
    rows = {row["check"]: row for row in json.loads(result.stdout)}
    return result, {name: row for name, row in rows.items() if name.startswith(("TLS", "tls_key"))}


def test_files_of_tls_that_are_in_order_and_none(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate(), crl=crl_of())
    Path(files.key).chmod(0o600)
    _, rows = of_tls(tmp_path, files)
    assert {name: row["state"] for name, row in rows.items()} == dict.fromkeys(
        ["TLS files", "TLS certificate", "TLS ca", "TLS crl", "tls_key"], "ok"
    )
    Path(files.key).chmod(0o644)
    _, rows = of_tls(tmp_path, files)
    assert (rows["tls_key"]["state"], rows["tls_key"]["mend"]) == (
        "optional", f"everyone on this machine can read it: chmod 600 {files.key}",
    )  # fmt: skip
    assert of_tls(tmp_path, TlsFiles())[1] == {}


def test_a_certificate_that_ends_soon_or_has_ended(tmp_path: Path) -> None:
    """INV-CTE1"""
    soon = node_certificate(now=NOW - timedelta(days=365 - 20))
    _, rows = of_tls(tmp_path, put(tmp_path / "soon", soon))
    assert rows["TLS certificate"]["state"] == "optional"
    assert "ends in " in rows["TLS certificate"]["found"]
    assert "tidemark cert renew" in rows["TLS certificate"]["mend"]
    result, rows = of_tls(tmp_path, put(tmp_path / "over", node_certificate(now=LONG_AGO)))
    assert result.exit_code == 1
    assert rows["TLS certificate"]["state"] == "MISSING"
    assert "is refused by everyone" in rows["TLS certificate"]["found"]


def test_files_of_tls_that_do_not_fit(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate())
    Path(files.key).write_bytes(key_pem(new_key()))
    result, rows = of_tls(tmp_path, files)
    assert result.exit_code == 1
    assert list(rows) == ["TLS files", "tls_key"]
    assert "is not that of the first certificate" in rows["TLS files"]["found"]


def test_INV_NTL2_a_certificate_of_another_node_is_found(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate("eu", 2))
    result, rows = of_tls(tmp_path, files, 'peer_security_protocol = "SSL"\n')
    assert result.exit_code == 1
    assert "is the certificate of node 2 of region eu" in rows["TLS files"]["found"]


def test_files_with_which_nodes_of_one_ca_refuse_each_other_are_remarked(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate(), crl=crl_of(by=authority("another")))
    _, rows = of_tls(tmp_path, files, 'peer_security_protocol = "SSL"\n')
    assert rows["TLS files"]["state"] == "optional"
    assert "has no CRL of the CA that has issued the certificate" in rows["TLS files"]["found"]


def test_INV_CTE2_a_certificate_that_does_not_count_yet_is_no_certificate(tmp_path: Path) -> None:
    files = put(tmp_path / "tls", node_certificate(now=NOW + timedelta(days=3)))
    result, rows = of_tls(tmp_path, files)
    assert result.exit_code == 1
    assert rows["TLS certificate"]["state"] == "MISSING"
    assert "counts only in" in rows["TLS certificate"]["found"]
