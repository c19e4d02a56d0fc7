"""`tidemark demo --secure`, shortly: the closing table holds with all doors shut, and the trails of both regions tell of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.process.test_cli import TIDEMARK

pytestmark = [pytest.mark.process, pytest.mark.slow]
PORTS = {"security_protocol": "SASL_SSL", "peer_security_protocol": "SSL", "http_security_protocol": "SSL"}  # fmt: skip


def ran(*words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([*TIDEMARK, *words], capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done


def trail_of(folder: Path, region: str) -> list[dict[str, Any]]:
    """Return what a region's trail tells, which is sound."""
    path = str(folder / region / "audit")
    ran("audit", "verify", path)
    lines = ran("audit", "list", path, "-o", "json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_the_demo_holds_with_all_doors_shut(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    done = ran("demo", "--secure", "--rows", "300", "--workers", "4", "-o", "json", "--engine", "local",
               "--data-dir", str(folder), "--report", str(tmp_path / "demo.html"))  # fmt: skip
    told = json.loads(done.stdout)
    assert told["broken"] == []
    assert told["transactions_committed"] == told["rows"] == 300
    assert (told["torn"], told["doubled"], told["missing"]) == (0, 0, 0)
    assert told["reconciliation"] == "consistent"
    for region in ("eu", "us"):
        node = json.loads((folder / region / "node.json").read_text())
        assert {key: node[key] for key in PORTS} == PORTS
        trail = trail_of(folder, region)
        logins = {row["principal"] for row in trail if (row["kind"], row["outcome"]) == ("login", "done")}  # fmt: skip
        assert {"User:admin", "User:workers"} <= logins
    assert any(row["operation"] == "POST /v1/region/failover" for row in trail_of(folder, "us"))
