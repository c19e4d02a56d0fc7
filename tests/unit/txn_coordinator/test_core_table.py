"""The table of a core's handlers, and what a core is put together from."""

import ast
from pathlib import Path
from typing import get_args

import txn_coordinator
from tests.fixtures.coordinator import REGION_EPOCH
from txn_coordinator import events as ev
from txn_coordinator.core import TxnCoordinatorCore

ROOT = Path(txn_coordinator.__file__).parent


def test_every_event_has_a_handler_and_nothing_else_has() -> None:
    core = TxnCoordinatorCore(0, region_epoch=REGION_EPOCH)
    assert set(core._handlers) == set(get_args(ev.TxnEvent))


# Holds INV-TC11.
def test_drivers_take_nothing_of_a_core_but_what_its_contract_names() -> None:
    allowed = {
        "shard",
        "step",
        "replay",
        "replay_whole_from",
        "view",
        "connections",
        "limit_timeouts",
    }
    taken = {
        node.attr
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and _is_core(node.value)
    }
    assert taken == allowed


def _is_core(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id == "core"
    return isinstance(node, ast.Attribute) and node.attr in ("core", "_core")
