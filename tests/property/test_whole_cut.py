"""The whole cut against brute force: the greatest vector of ends that cuts no committed transaction in two."""

from dataclasses import dataclass, field
from itertools import product
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import example, given

from geo_replicator.lineage import LogKey
from geo_replicator.whole_cut import Forgotten, LogTransactions, whole_cut
from idempotency.decision import DecisionId
from idempotency.identity import LeaderEpoch, Round
from idempotency.partition_state import PartitionState
from idempotency.record_batch import ControlType
from tests.fixtures.kernel_batches import data, end, marker

TOPIC = UUID(int=7)
LOGS = 3


@dataclass
class World:
    """Producers that write to up to three logs; the truth, beside what the partitions know.

    Under transactions v2 each transaction has an epoch of its own, which its marker ends by the next one.
    """

    tv2: bool = True
    epochs: dict[int, int] = field(default_factory=dict)
    states: list[PartitionState] = field(
        default_factory=lambda: [PartitionState() for _ in range(LOGS)]
    )
    open: dict[int, set[int]] = field(default_factory=dict)
    serial: int = 0
    decided: list[tuple[int, bool, list[int], DecisionId]] = field(default_factory=list)
    spans: dict[DecisionId, dict[int, list[int]]] = field(default_factory=dict)
    undecided: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    markers: dict[tuple[DecisionId, int], int] = field(default_factory=dict)

    def write(self, producer: int, log: int) -> None:
        """Write one record in the producer's transaction, unless its last one lacks a marker (C33)."""
        if any(who == producer and left for who, _, left, _ in self.decided):
            return
        state, key = self.states[log], (producer, log)
        offset, sequence = state.end_offset, self.sequences.get(key, 0)
        self.sequences[key] = sequence + 1
        state.apply(
            data(
                offset,
                producer_id=producer,
                producer_epoch=self.epochs.get(producer, 0),
                sequence=sequence,
                transactional=True,
            )
        )
        self.undecided.setdefault(producer, {}).setdefault(log, []).append(offset)

    def decide(self, producer: int, *, commit: bool) -> None:
        """Decide what the producer has open; markers follow one by one."""
        spans = self.undecided.pop(producer, None)
        if spans is None:
            return
        self.serial += 1
        if self.tv2:
            self.epochs[producer] = self.epochs.get(producer, 0) + 1
            self.sequences = {key: n for key, n in self.sequences.items() if key[0] != producer}
        decision = DecisionId(0, LeaderEpoch(1), self.serial, Round(self.serial))
        self.decided.append((producer, commit, sorted(spans), decision))
        if commit:
            self.spans[decision] = spans

    def mark(self, index: int) -> None:
        """Write the next marker of some decided transaction."""
        waiting = [entry for entry in self.decided if entry[2]]
        if not waiting:
            return
        producer, commit, left, decision = waiting[index % len(waiting)]
        log = left.pop()
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        state = self.states[log]
        self.markers[decision, log] = state.end_offset
        epoch = self.epochs.get(producer, 0)
        facts = marker(kind, producer_id=producer, producer_epoch=epoch, decision=decision)
        state.apply(*end(state.end_offset, facts))

    def is_whole(self, ends: tuple[int, ...], bounds: tuple[int, ...]) -> bool:
        """Say whether each committed transaction lies below all ends with its markers below D, or above all."""
        for decision, spans in self.spans.items():
            shown = [min(offsets) < ends[log] for log, offsets in spans.items()]
            whole = [
                max(offsets) < ends[log]
                and self.markers.get((decision, log), bounds[log]) < bounds[log]
                for log, offsets in spans.items()
            ]
            if any(shown) and not all(whole):
                return False
        return True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(0, LOGS - 1)),
        st.tuples(st.just("decide"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("mark"), st.integers(0, 5), st.just(0)),
    ),
    max_size=18,
)


def played(steps: list[tuple[str, int, int]], *, tv2: bool = True) -> World:
    return played_on(World(tv2=tv2), steps)


def played_on(world: World, steps: list[tuple[str, int, int]]) -> World:
    for kind, which, detail in steps:
        if kind == "write":
            world.write(which, detail)
        elif kind == "decide":
            world.decide(which, commit=bool(detail))
        else:
            world.mark(which)
    return world


@given(STEPS)
def test_T17_whole_cut_is_the_greatest_that_tears_nothing(
    steps: list[tuple[str, int, int]],
) -> None:
    world = played(steps)
    bounds = tuple(state.end_offset for state in world.states)
    logs = {
        LogKey(TOPIC, number): LogTransactions(
            state.last_stable_offset(bound), state.committed_below(bound), state.unended_at(bound)
        )
        for number, (state, bound) in enumerate(zip(world.states, bounds, strict=True))
    }
    found = whole_cut(logs)
    ends = tuple(found[LogKey(TOPIC, number)] for number in range(LOGS))
    limits = tuple(log.stable_offset for log in logs.values())
    whole = [
        vector
        for vector in product(*(range(limit + 1) for limit in limits))
        if world.is_whole(vector, bounds)
    ]
    greatest = tuple(max(vector[number] for vector in whole) for number in range(LOGS))
    assert ends == greatest


@given(STEPS, st.lists(st.integers(0, 9), min_size=LOGS, max_size=LOGS), st.booleans())
def test_T17_markers_at_or_above_D_count_as_missing(
    steps: list[tuple[str, int, int]], above: list[int], tv2: bool
) -> None:
    """D of some logs lies among the markers, as after a round that closed while they were written."""
    world = played(steps, tv2=tv2)
    bounds = tuple(
        _lowered(world, number, state.end_offset, above[number])
        for number, state in enumerate(world.states)
    )
    logs = {
        LogKey(TOPIC, number): LogTransactions(
            state.last_stable_offset(bound), state.committed_below(bound), state.unended_at(bound)
        )
        for number, (state, bound) in enumerate(zip(world.states, bounds, strict=True))
    }
    found = whole_cut(logs)
    ends = tuple(found[LogKey(TOPIC, number)] for number in range(LOGS))
    assert world.is_whole(ends, bounds), (ends, bounds)
    assert all(end <= log.stable_offset for end, log in zip(ends, logs.values(), strict=True))


BEHIND_AN_OPEN_ONE = [
    ("write", 0, 0),
    ("write", 1, 0),
    ("write", 1, 1),
    ("decide", 1, 1),
    ("mark", 0, 0),
    ("mark", 0, 0),
]


@example(BEHIND_AN_OPEN_ONE, [], [True] * LOGS, True)
@example(BEHIND_AN_OPEN_ONE, [("write", 2, 0), ("write", 2, 1)], [False, True, True], False)
@given(STEPS, STEPS, st.lists(st.booleans(), min_size=LOGS, max_size=LOGS), st.booleans())
def test_T17_a_region_that_forgot_while_it_acted_tears_nothing(
    before: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
    forgets: list[bool],
    tv2: bool,
) -> None:
    """It acted, forgot in some of its logs what was completed by then, and is a mirror since: INV-WC4."""
    world = played(before, tv2=tv2)
    covered = [state.end_offset for state in world.states]
    for state, forgot in zip(world.states, forgets, strict=True):
        if forgot:
            state.forget_completed_below(state.end_offset)
    played_on(world, after)
    bounds = tuple(state.end_offset for state in world.states)
    logs = {
        LogKey(TOPIC, number): LogTransactions(
            state.last_stable_offset(bound),
            state.committed_below(bound),
            state.unended_at(bound),
            Forgotten(0, covered[number]),
        )
        for number, (state, bound) in enumerate(zip(world.states, bounds, strict=True))
    }
    found = whole_cut(logs)
    ends = tuple(found[LogKey(TOPIC, number)] for number in range(LOGS))
    assert world.is_whole(ends, bounds), (ends, bounds)
    if not world.undecided and not any(left for _, _, left, _ in world.decided):
        assert ends == bounds, "with nothing open all is shown"


def _lowered(world: World, log: int, end_offset: int, choice: int) -> int:
    """Return a D that keeps T8: above the data of every decided transaction, at a marker or the end."""
    data_end = max(
        (max(spans[log]) + 1 for spans in world.spans.values() if log in spans), default=0
    )
    places = [
        offset for (_, at), offset in world.markers.items() if at == log and offset >= data_end
    ]
    return [*sorted(places), end_offset][choice % (len(places) + 1)]
