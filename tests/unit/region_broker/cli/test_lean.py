"""Packages that a node does not import: hidden while others are imported, there again afterwards."""

import gc
import importlib
import subprocess
import sys

import pytest

from region_broker.cli import lean
from region_broker.cli.lean import without


def test_INV_LEAN1_a_hidden_package_is_not_there_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with without("this"), pytest.raises(ImportError):
        importlib.import_module("this")
    assert "this" not in sys.modules


def test_what_is_imported_already_stays() -> None:
    with without("importlib"):
        assert sys.modules["importlib"] is importlib
    assert sys.modules["importlib"] is importlib


def test_it_is_there_again_after_an_error() -> None:
    with pytest.raises(RuntimeError), without("no_such_package"):
        raise RuntimeError
    assert "no_such_package" not in sys.modules


FAULTS = """
import resource, sys
from region_broker.cli.lean import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    blocks = [bytearray(1 << 20) for _ in range(6)]
    del blocks
before = faults()
for _ in range(50):
    blocks = [bytearray(1 << 20) for _ in range(6)]
    del blocks
print(faults() - before)
"""


def test_blocks_of_a_request_s_size_are_used_again() -> None:
    """Six requests of 1 MiB at a time, again and again: 256 page faults each, unless what was freed is kept."""

    def page_faults(how: str) -> int:
        run = subprocess.run(
            [sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True
        )
        return int(run.stdout)

    assert page_faults("keep") < 1_000
    assert page_faults("not") > 10_000


def test_INV_LEAN2_a_node_that_is_ready_looks_for_no_cycles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    for name in ("collect", "freeze", "set_threshold"):
        monkeypatch.setattr(gc, name, lambda *_values, name=name: asked.append(name))
    lean.calm_collector()
    assert asked == ["collect", "freeze", "set_threshold"]
    lean.skip_what_is_there()
    assert asked[3:] == ["freeze"]
