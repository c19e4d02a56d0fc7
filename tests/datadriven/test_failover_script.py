"""Plays failover.txt on the failover machine; the file is the specification."""

from collections.abc import Callable
from pathlib import Path

import pytest

from geo_replicator.failover import IllegalTransition, State, fold, replay
from geo_replicator.failover_events import (
    Adopted,
    Born,
    CutChosen,
    DrainBegun,
    DrainRolledBack,
    EntryRecord,
    Event,
    FollowResumed,
    HigherEpochLearned,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from idempotency.identity import RegionEpoch

SCRIPT = Path(__file__).with_name("failover.txt").read_text(encoding="utf-8")


def scenarios() -> list[list[str]]:
    blocks = [block.splitlines() for block in SCRIPT.split("\n\n")]
    steps = [[line for line in block if line and not line.startswith("#")] for block in blocks]
    return [block for block in steps if block]


def entry(region_epoch: str, region: str, base: str) -> EntryRecord:
    epoch, number = base.removeprefix("base=").split("/")
    return EntryRecord(
        RegionEpoch(int(region_epoch)), region, RegionEpoch(int(epoch)), int(number), {}
    )


def takeover(epoch: str, origin: str, how: str) -> Event:
    old_region = origin.removeprefix("from=")
    return TakeoverBegun(
        RegionEpoch(int(epoch)), old_region, "op", how == "planned", how == "forced"
    )


WORDS: dict[str, Callable[..., Event]] = {
    "born": lambda name, role, epoch: Born(name, role == "acting", RegionEpoch(int(epoch))),
    "takeover": takeover,
    "logs-cut": lambda epoch: LogsCut(RegionEpoch(int(epoch))),
    "adopted": lambda epoch: Adopted(RegionEpoch(int(epoch))),
    "drain": lambda target: DrainBegun("op", target),
    "drain-over": lambda: DrainRolledBack("over"),
    "promise": lambda epoch, candidate: PromiseGiven(RegionEpoch(int(epoch)), candidate),
    "higher-epoch": lambda epoch, acting: HigherEpochLearned(RegionEpoch(int(epoch)), acting),
    "return": lambda epoch, acting, base: ReturnBegun((entry(epoch, acting, base),)),
    "returned": lambda epoch: Returned(RegionEpoch(int(epoch))),
    "follow": FollowResumed,
    "abandon": lambda: TakeoverAbandoned("given up"),
}


def event_of(words: list[str], region: str) -> Event:
    if words[0] == "cut-chosen":
        return CutChosen(entry(words[1], region, words[2]))
    return WORDS[words[0]](*words[1:])


def outcome_of(state: State | None, event: Event) -> tuple[State | None, str]:
    try:
        after = replay([event]) if state is None else fold(state, event)
    except IllegalTransition:
        return state, "illegal"
    assert after is not None
    return after, after.phase.value + (" writes-open" if after.may_act else "")


@pytest.mark.parametrize("steps", scenarios(), ids=lambda steps: steps[-1].split("->")[0].strip())
def test_failover_script(steps: list[str]) -> None:
    state: State | None = None
    for step in steps:
        said, _, expected = step.partition("->")
        region = state.region if state is not None else ""
        state, found = outcome_of(state, event_of(said.split(), region))
        assert found == expected.strip(), step
