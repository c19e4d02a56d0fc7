"""Nodes that are forked by one process, each as if it had been started by itself."""

import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.starter import start_node

pytestmark = pytest.mark.process
ENDS_S = 30.0
CONFIG = """
region = "eu"
cluster_id = "00000000-0000-0000-0000-000000000001"
initial_primary_region = "eu"
[[regions]]
name = "eu"
ordinal = 0
node_id = 1
kafka = "127.0.0.1:1"
peer = "127.0.0.1:2"
http = "127.0.0.1:3"
"""


def checked(folder: Path) -> str:
    """Return what `tidemark broker --check` says of the configuration in the working folder."""
    with (folder / "errors").open("ab") as errors:
        process = start_node(["broker", "--check", "--config", "node.toml"], errors)
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        said = process.stdout.read().decode()
    process.wait(ENDS_S)
    return said + (folder / "errors").read_text()


def test_INV_STS2_each_has_the_environment_and_the_folder_of_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "node.toml").write_text(CONFIG)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("TIDEMARK_DATA_DIR", f"data-{number}")
        monkeypatch.setenv(f"TIDEMARK_NONE_{number}", "")
        said = checked(folder)
        assert f"data-{number} has no history" in said
        assert f"TIDEMARK_NONE_{number} overlays no key" in said
        monkeypatch.delenv(f"TIDEMARK_NONE_{number}")
        assert "TIDEMARK_NONE_1" not in said or number == 1


def test_INV_STS1_a_forked_node_is_found_by_its_name_and_ends_by_what_ends_others(
    tmp_path: Path,
) -> None:
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=1)) as cluster:
        cluster.start()
        [pid] = cluster.pids("eu")
        told = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
        config = cluster.data_dir("eu") / "node.json"
        assert told == f"tidemark broker --stop-with-stdin --config {config}"
        assert os.getsid(pid) == pid
        os.kill(pid, signal.SIGKILL)
        while cluster.running:
            os.sched_yield()
        assert cluster.dead() == {"eu": -signal.SIGKILL}
        cluster.start()
        cluster.stop(["eu"])
        assert cluster.running == []
