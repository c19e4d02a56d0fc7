"""`tidemark demo --nodes 3`, shortly: the leading node is killed, then its region, and every line of the closing table holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_the_demo_of_two_regions_of_three_nodes_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "region_broker", "demo", "--nodes", "3", "--rows", "300", "--workers", "4", "-o", "json", "--engine", "local",
         "--report", str(tmp_path / "demo.html")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["broken"] == []
    assert told["transactions_committed"] == told["rows"] == 300
    assert (told["torn"], told["doubled"], told["missing"]) == (0, 0, 0)
    assert (told["leaders_killed"], told["nodes_killed_with_the_region"]) == (1, 3)
    assert (told["logs_differing_between_nodes"], told["differing_between_regions"]) == (0, 0)
    assert told["equal_to_the_statement"] is True
    assert told["reconciliation"] == "consistent"
    assert (tmp_path / "demo.html").exists()
