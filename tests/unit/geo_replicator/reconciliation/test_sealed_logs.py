"""Sealed topics are compared, and their transactions checked, by headers and bytes: no key is asked for, and none makes a difference."""

from collections.abc import Callable
from pathlib import Path

import pytest

from geo_replicator.reconciliation.findings import Kind
from geo_replicator.reconciliation.job import LocalEngine, Outcome, Request, reconcile_all
from tests.reconciliation.faults import change_payload, flip_payload, remove, sound_pair
from tests.reconciliation.sealed import sealed_pair
from tests.reconciliation.two_regions import A0, Pair, Place, sound_primary

FAULTS = {"a bit flips": flip_payload, "a batch is another one": change_payload, "one is gone": remove}  # fmt: skip


def reconciled(pair: Pair, folder: Path) -> Outcome:
    source, mirror = pair.write(folder)
    return reconcile_all(Request(source=source, mirror=mirror), LocalEngine())


def roots(outcome: Outcome) -> set[tuple[Kind, str]]:
    return {(each.kind, f"{each.topic}-{each.partition}") for each in outcome.findings if each.is_root}  # fmt: skip


def counted(outcome: Outcome) -> tuple[int, ...]:
    told = outcome.summary
    return told.decisions_checked, told.records, told.batches, told.compared_offsets


def test_what_is_sealed_is_told_as_what_is_not(tmp_path: Path) -> None:
    open_ = reconciled(sound_pair(), tmp_path / "open")
    sealed = reconciled(sealed_pair(sound_primary()), tmp_path / "sealed")
    assert sealed.findings == open_.findings == []
    assert sealed.exit_code == 0
    assert sealed.summary.coverage == 1.0
    assert counted(sealed) == counted(open_)
    assert sealed.summary.decisions_checked > 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_is_wrong_with_sealed_bytes_is_found_as_with_others(
    tmp_path: Path, fault: Callable[[Pair, Place, int], None]
) -> None:
    found = []
    for name, pair in (("open", sound_pair()), ("sealed", sealed_pair(sound_primary()))):
        fault(pair, A0, 2)
        found.append(reconciled(pair, tmp_path / name))
    open_, sealed = found
    assert roots(sealed) == roots(open_) != set()
    assert sealed.exit_code == open_.exit_code == 1
