"""Any fault anywhere, and any two faults on different partitions, show exactly their roots (spark.md 4.4)."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from geo_replicator.reconciliation.findings import Finding, Kind
from geo_replicator.reconciliation.job import LocalEngine, Outcome, Request, reconcile_all
from idempotency.record_batch import read_header
from tests.reconciliation.faults import LOCAL_EDITS
from tests.reconciliation.two_regions import A0, A1, DATA_PLACES, PLAIN, Pair, Place, sound_primary

_NAMES = sorted(LOCAL_EDITS)


@st.composite
def edits(draw: st.DrawFn, place: Place) -> tuple[str, Place, float]:
    return draw(st.sampled_from(_NAMES)), place, draw(st.floats(0, 0.999))


def _apply(pair: Pair, edit: tuple[str, Place, float], covered: dict[Place, int]) -> None:
    name, place, where = edit
    # The last covered batch has no neighbour to be swapped with below the cut.
    index = int(where * (covered[place] - 1))
    LOCAL_EDITS[name][0](pair, place, index)


def _reconciled(pair: Pair) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        source, mirror = pair.write(Path(folder))
        return reconcile_all(Request(source=source, mirror=mirror), LocalEngine())


def _roots(findings: list[Finding]) -> list[tuple[Kind, str]]:
    return sorted(((f.kind, f"{f.topic}-{f.partition}") for f in findings if f.is_root), key=str)


def _covered(pair: Pair) -> dict[Place, int]:
    """Return how many batches of each log lie below the tidemark (what `sound_primary` adds after it)."""
    behind = {A0: 2, A1: 3, PLAIN: 1}
    return {place: len(pair.source[place]) - behind[place] for place in DATA_PLACES}


# Holds INV-RCR2.
@settings(max_examples=60, deadline=None)
@given(
    roll=st.integers(3, 40),
    rounds=st.integers(2, 7),
    edit=st.sampled_from(DATA_PLACES).flatmap(edits),
)
def test_any_single_fault_shows_its_root(
    roll: int, rounds: int, edit: tuple[str, Place, float]
) -> None:
    pair = Pair.of(sound_primary(rounds=rounds), roll)
    _apply(pair, edit, _covered(pair))
    kind = LOCAL_EDITS[edit[0]][1]
    outcome = _reconciled(pair)
    assert _roots(outcome.findings) == [(kind, f"{edit[1][0]}-{edit[1][1]}")], outcome.findings
    assert outcome.exit_code == 1


@settings(max_examples=40, deadline=None)
@given(roll=st.integers(3, 40), first=edits(PLAIN), second=st.sampled_from((A0, A1)).flatmap(edits))
def test_two_faults_on_different_partitions_show_both_roots(
    roll: int, first: tuple[str, Place, float], second: tuple[str, Place, float]
) -> None:
    pair = Pair.of(sound_primary(), roll)
    covered = _covered(pair)
    for edit in (first, second):
        _apply(pair, edit, covered)
    expected = [
        (LOCAL_EDITS[name][1], f"{place[0]}-{place[1]}") for name, place, _ in (first, second)
    ]
    outcome = _reconciled(pair)
    assert _roots(outcome.findings) == sorted(expected, key=str), outcome.findings


@settings(max_examples=15, deadline=None)
@given(roll=st.integers(1, 50), rounds=st.integers(1, 8))
def test_a_sound_pair_of_any_shape_has_no_finding(roll: int, rounds: int) -> None:
    pair = Pair.of(sound_primary(rounds=rounds), roll)
    outcome = _reconciled(pair)
    assert outcome.findings == []
    assert outcome.exit_code == 0
    assert outcome.summary.horizon_offsets == sum(
        read_header(log[count - 1]).next_offset
        for log, count in ((pair.source[place], _covered(pair)[place]) for place in DATA_PLACES)
    ) + sum(
        read_header(log[-1]).next_offset - above
        for place, log in pair.source.items()
        if place not in DATA_PLACES
        for above in [{("__transaction_state", 0): 1, ("__transaction_state", 1): 3}.get(place, 0)]
    )
