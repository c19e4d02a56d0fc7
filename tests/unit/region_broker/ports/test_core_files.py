"""A process that is aborted leaves no core file (INV-NCF1)."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from region_broker.ports.system.core_files import leave_no_core_file

LEFT = """
import os, resource
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from region_broker.ports.system.core_files import leave_no_core_file
pid = os.fork()
if pid == 0:
    leave_no_core_file()
    os.abort()
print(os.WCOREDUMP(os.waitpid(pid, 0)[1]))
"""


def test_INV_NCF1_who_is_aborted_leaves_no_core_file(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path.cwd())}
    said = subprocess.run(
        [sys.executable, "-c", LEFT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "False\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("hard", "soft"), [(resource.RLIM_INFINITY, 1), (4096, 1), (0, 0)])
def test_INV_NCF1_the_limit_is_the_one_at_which_no_program_is_started_either(
    monkeypatch: pytest.MonkeyPatch, hard: int, soft: int
) -> None:
    limits = {resource.RLIMIT_CORE: (hard, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    leave_no_core_file()
    assert limits == {resource.RLIMIT_CORE: (soft, hard)}
