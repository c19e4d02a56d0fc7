"""`tidemark broker` at an address that others reach: it does not start unsecured, and where its file says that it may it warns each time (INV-EXP1)."""

import contextlib
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from region_broker.workbench.cluster_plan import free_ports
from tests.process.test_cli import TIDEMARK, TIMEOUT_S

pytestmark = [pytest.mark.process, pytest.mark.slow]
PORTS = ("kafka", "peer", "http")
NODE = """
listen_host = "0.0.0.0"
region = "eu"
cluster_id = "00000000-0000-0000-0000-000000000001"
initial_primary_region = "eu"
data_dir = "data"
[[regions]]
name = "eu"
ordinal = 0
node_id = 1
"""


class Lived(NamedTuple):
    """What a node logged, and what it said over HTTP when it was ready."""

    log: Sequence[dict[str, Any]]
    readyz: dict[str, Any]
    metrics: Sequence[str]
    limits: str
    """As the kernel has them, of the process."""


def written(folder: Path, keys: str) -> int:
    """Write a node's file; return its HTTP port. The ports are free, and not kept so: whoever keeps them keeps all of this machine from them."""
    with contextlib.ExitStack() as held:
        ports = free_ports(len(PORTS), held)
    own = "".join(f'{name} = "127.0.0.1:{port}"\n' for name, port in zip(PORTS, ports, strict=True))
    (folder / "node.toml").write_text(f"{keys}{NODE}{own}")
    return ports[-1]


def run(folder: Path, command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TIDEMARK, command, "--config", "node.toml"], cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )  # fmt: skip


def lived(folder: Path, http_port: int) -> Lived:
    """Start a node, and stop it when it has been asked."""

    def asked(path: str) -> str:
        url = f"http://127.0.0.1:{http_port}{path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            said: bytes = answer.read()
        return said.decode()

    with subprocess.Popen(
        [*TIDEMARK, "broker", "--config", "node.toml"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready "):
            raise AssertionError(process.communicate(timeout=TIMEOUT_S))
        readyz, metrics = json.loads(asked("/readyz")), asked("/metrics").splitlines()
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return Lived([json.loads(line) for line in errors.splitlines()], readyz, metrics, limits)


def test_INV_EXP1_a_node_that_others_reach_does_not_start_unsecured(tmp_path: Path) -> None:
    written(tmp_path, "")
    done = run(tmp_path, "broker")
    assert done.returncode == 1
    assert "would be open to others" in done.stderr
    assert "insecure = true" in done.stderr, "what to do"
    assert not (tmp_path / "data").exists()


def test_INV_EXP1_a_node_that_may_be_open_warns_at_each_start_and_in_readyz(tmp_path: Path) -> None:
    http_port = written(tmp_path, "insecure = true\n")
    assert run(tmp_path, "init").returncode == 0
    for _ in range(2):
        told = lived(tmp_path, http_port)
        [warned] = [each for each in told.log if each["event"].startswith("insecure = true: kafka (0.0.0.0:")]  # fmt: skip
        assert warned["level"] == "warning"
        assert re.search(r"Max core file size +[01] ", told.limits), "INV-NCF1"
        assert (told.readyz["status"], told.readyz["warning"]) == ("ready", warned["event"])
        assert {f'tidemark_insecure_port{{port="{name}"}} 1.0' for name in PORTS} <= {*told.metrics}
