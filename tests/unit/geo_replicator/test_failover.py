"""The failover machine: its table, its fold, and what it does next after any crash."""

from uuid import UUID

import msgspec
import pytest

from geo_replicator.directory import Promise
from geo_replicator.failover import (
    TRANSITIONS,
    Act,
    Adopt,
    CollectPromises,
    CutLogs,
    IllegalTransition,
    LearnLineage,
    Mirror,
    Phase,
    RollBackDrain,
    State,
    fold,
    next_effect,
    replay,
    standing_reason,
    unborn,
)
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
    HistoryJoined,
    HistoryRefuted,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from geo_replicator.lineage import LogKey, TidemarkPoint
from idempotency.identity import RegionEpoch
from tests.fixtures.born_folders import birth_at

ORDERS = LogKey(UUID(int=1), 0)
US_ENTRY = EntryRecord(RegionEpoch(17), "us", RegionEpoch(8), 5, {ORDERS.encode(): 40}, 1_000)
TAKEOVER = TakeoverBegun(RegionEpoch(17), "eu", "op-1", planned=False, forced=True)
TAKEOVER_STEPS: list[Event] = [
    Born("us", acting=False, region_epoch=RegionEpoch(8)),
    TAKEOVER,
    CutChosen(US_ENTRY),
    LogsCut(RegionEpoch(17)),
    Adopted(RegionEpoch(17)),
]
RETURN_STEPS: list[Event] = [
    Born("eu", acting=True, region_epoch=RegionEpoch(8)),
    HigherEpochLearned(RegionEpoch(17), "us"),
    ReturnBegun((US_ENTRY,)),
    Returned(RegionEpoch(17)),
]


def after(*events: Event) -> State:
    state = replay(list(events))
    assert state is not None
    return state


def test_the_way_to_acting_is_the_documented_one() -> None:
    phases = [after(*TAKEOVER_STEPS[: n + 1]).phase for n in range(len(TAKEOVER_STEPS))]
    assert phases == [
        Phase.MIRRORING, Phase.FENCING, Phase.CUTTING, Phase.ADOPTING, Phase.ACTING,
    ]  # fmt: skip


def test_the_way_back_is_the_documented_one() -> None:
    phases = [after(*RETURN_STEPS[: n + 1]).phase for n in range(len(RETURN_STEPS))]
    assert phases == [Phase.ACTING, Phase.FENCED, Phase.RETURNING, Phase.MIRRORING]


def test_INV_FA8_a_refuted_region_is_so_until_it_came_back_to_the_history_of_another() -> None:
    born, *steps = RETURN_STEPS
    refuted = HistoryRefuted("us", RegionEpoch(8), 5, 1, "us has shown more")
    states = [after(born, refuted, *steps[:n]) for n in range(len(steps) + 1)]
    assert [state.refuted for state in states] == [refuted, refuted, refuted, None]
    assert not any(state.may_act for state in states)


def test_INV_FA5_nobody_acts_below_what_it_promised() -> None:
    acting = State(region="eu", phase=Phase.ACTING, region_epoch=RegionEpoch(8), acting_region="eu")
    assert acting.may_act
    promise = Promise(RegionEpoch(17), "us")
    assert not msgspec.structs.replace(acting, promise=promise).may_act


def test_T32_whoever_takes_over_holds_more_than_a_copy() -> None:
    joined = HistoryJoined("us", birth_at("eu", 0))
    states = [after(joined, *TAKEOVER_STEPS[1 : n + 1]) for n in range(len(TAKEOVER_STEPS))]
    assert [state.copied for state in states] == [True, True, True, True, False]


def test_INV_LN1_entries_that_were_missed_come_in_their_order() -> None:
    born, learned, *_ = RETURN_STEPS
    newer = msgspec.structs.replace(US_ENTRY, region_epoch=RegionEpoch(25))
    assert after(born, learned, ReturnBegun((US_ENTRY, newer))).unseen == (US_ENTRY, newer)
    for entries in ((newer, US_ENTRY), (US_ENTRY, US_ENTRY)):
        with pytest.raises(AssertionError, match="INV-LN1"):
            after(born, learned, ReturnBegun(entries))


def test_each_phase_has_one_effect_to_go_on_with() -> None:
    effects = [type(next_effect(after(*TAKEOVER_STEPS[: n + 1]))) for n in range(5)]
    assert effects == [Mirror, CollectPromises, CutLogs, Adopt, Act]
    effects = [type(next_effect(after(*RETURN_STEPS[: n + 1]))) for n in range(4)]
    assert effects == [Act, LearnLineage, CutLogs, Mirror]
    draining = after(Born("eu", acting=True, region_epoch=RegionEpoch(8)), DrainBegun("op", "us"))
    assert isinstance(next_effect(draining), RollBackDrain)


# Holds INV-FA2.
def test_an_event_that_the_table_does_not_name_is_illegal() -> None:
    state = after(Born("us", acting=False, region_epoch=RegionEpoch(8)))
    for event in (
        Adopted(RegionEpoch(17)),
        LogsCut(RegionEpoch(17)),
        CutChosen(US_ENTRY),
        DrainBegun("op", "eu"),
    ):
        assert (type(event), state.phase) not in TRANSITIONS
        with pytest.raises(IllegalTransition):
            fold(state, event)


def test_a_journal_begins_with_birth() -> None:
    assert replay([]) is None
    with pytest.raises(IllegalTransition):
        replay([TAKEOVER])


# Holds INV-FA6.
def test_events_survive_the_journal_codec() -> None:
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = [
        *TAKEOVER_STEPS,
        *RETURN_STEPS,
        DrainBegun("op", "us"),
        DrainRolledBack("late"),
        PromiseGiven(RegionEpoch(17), "us"),
        TakeoverAbandoned("no promise"),
        FollowResumed("eu"),
    ]
    assert [decoder.decode(msgspec.json.encode(event)) for event in events] == events


# Holds INV-FA4.
def test_only_acting_may_act() -> None:
    states = [after(*TAKEOVER_STEPS[: n + 1]) for n in range(5)]
    assert [state.may_act for state in states] == [False, False, False, False, True]
    assert not after(
        Born("eu", acting=True, region_epoch=RegionEpoch(8)), DrainBegun("op", "us")
    ).may_act


GOES_ON = "goes on by itself"


@pytest.mark.parametrize(
    "events",
    [
        *[TAKEOVER_STEPS[: n + 1] for n in range(len(TAKEOVER_STEPS))],
        *[RETURN_STEPS[: n + 1] for n in range(len(RETURN_STEPS))],
        [*TAKEOVER_STEPS[:2], TakeoverAbandoned("no promise of eu")],
        [RETURN_STEPS[0], DrainBegun("op", "us")],
        [RETURN_STEPS[0], DrainBegun("op", "us"), PromiseGiven(RegionEpoch(17), "us")],
        [HistoryJoined("us", birth_at("eu", 0))],
    ],
    ids=lambda events: type(events[-1]).__name__ + str(len(events)),
)
def test_INV_FA9_whoever_does_not_act_says_that_it_goes_on_by_itself(events: list[Event]) -> None:
    state = after(*events)
    assert (GOES_ON in standing_reason(state)) is not state.may_act
    assert bool(standing_reason(state)) is not state.may_act


def test_INV_FA9_a_region_without_history_goes_on_by_itself() -> None:
    assert GOES_ON in standing_reason(unborn("us"))
    assert "asks the other regions for theirs" in standing_reason(unborn("us"))


def test_INV_FA9_in_a_dispute_the_choices_are_the_whole_reason() -> None:
    refuted = HistoryRefuted(
        "us", RegionEpoch(8), 5, 1, "us has shown more: tidemark region failover --to us"
    )
    assert standing_reason(after(RETURN_STEPS[0], refuted)) == refuted.reason


def test_an_abandoned_take_over_binds_nobody_but_is_never_used_again() -> None:
    state = after(*TAKEOVER_STEPS[:2], TakeoverAbandoned("no promise of eu"))
    assert state.phase is Phase.FENCED
    assert state.promise.region_epoch == 0
    assert state.highest_epoch_known == 17
    assert fold(state, FollowResumed("eu")).phase is Phase.MIRRORING


def test_a_drain_rolls_back_to_acting() -> None:
    state = after(
        Born("eu", acting=True, region_epoch=RegionEpoch(8)),
        DrainBegun("op", "us"),
        DrainRolledBack("late"),
    )
    assert state.may_act


def test_a_fenced_region_may_take_over_itself() -> None:
    state = after(
        Born("eu", acting=True, region_epoch=RegionEpoch(8)), PromiseGiven(RegionEpoch(17), "us")
    )
    assert state.phase is Phase.FENCED
    again = fold(state, TakeoverBegun(RegionEpoch(24), "eu", "op-2", planned=False, forced=True))
    assert again.phase is Phase.FENCING
    assert again.promise == Promise(RegionEpoch(24), "eu")


def test_returning_cuts_to_the_lowest_base_it_has_not_seen() -> None:
    later = EntryRecord(RegionEpoch(24), "eu", RegionEpoch(8), 3, {ORDERS.encode(): 30}, 2_000)
    state = after(
        Born("ap", acting=False, region_epoch=RegionEpoch(8)),
        HigherEpochLearned(RegionEpoch(24), "eu"),
        ReturnBegun((US_ENTRY, later)),
    )
    effect = next_effect(state)
    assert isinstance(effect, CutLogs)
    assert effect.cut.point == TidemarkPoint(RegionEpoch(8), 3)
    assert effect.cut.position_of(ORDERS) == 30
    assert effect.lineage_epoch == 24


def test_INV_LN4_returning_cuts_for_no_takeover_that_was_passed_over_but_its_own() -> None:
    base = US_ENTRY.base_number + 1
    later = EntryRecord(RegionEpoch(26), "ap", RegionEpoch(8), base, {ORDERS.encode(): 90}, 2_000)
    for region, cuts_for in (("eu", (later,)), ("us", (US_ENTRY, later))):
        state = after(
            Born(region, acting=False, region_epoch=RegionEpoch(8)),
            HigherEpochLearned(RegionEpoch(26), "ap"),
            ReturnBegun((US_ENTRY, later)),
        )
        effect = next_effect(state)
        assert isinstance(effect, CutLogs)
        assert effect.entries == (US_ENTRY, later)
        assert effect.cuts_for == cuts_for
        assert [record for record, _ in effect.by_entry()] == list(cuts_for)
        assert effect.cut.point == cuts_for[0].entry().base
        assert effect.lineage_epoch == 26


def test_INV_LO3_each_tail_is_cut_by_the_first_missed_entry_below_it() -> None:
    later = EntryRecord(RegionEpoch(24), "eu", RegionEpoch(8), 3, {ORDERS.encode(): 30}, 2_000)
    state = after(
        Born("ap", acting=False, region_epoch=RegionEpoch(8)),
        HigherEpochLearned(RegionEpoch(24), "eu"),
        ReturnBegun((US_ENTRY, later)),
    )
    effect = next_effect(state)
    assert isinstance(effect, CutLogs)
    cuts = [(record.region_epoch, cut.position_of(ORDERS)) for record, cut in effect.by_entry()]
    # Offsets from 40 on were lost by region epoch 17 already; what lies from 30 on was lost by 24.
    assert cuts == [(17, 40), (24, 30)]


def test_T24_a_takeover_given_up_leaves_an_earlier_promise_to_another_candidate_in_force() -> None:
    """1. ap was promised 18. 2. us tries to take over, twice, and gives up. 3. ap may act all the same."""
    state = replay(
        [Born("us", acting=False, region_epoch=RegionEpoch(8)), PromiseGiven(RegionEpoch(18), "ap")]
    )
    assert state is not None
    for epoch in (25, 33):
        state = fold(
            state, TakeoverBegun(RegionEpoch(epoch), "eu", "op", planned=False, forced=False)
        )
        assert state.promise == Promise(RegionEpoch(epoch), "us")
        state = fold(state, TakeoverAbandoned("no promise of region eu"))
        assert state.promise == Promise(RegionEpoch(18), "ap")
    assert state.phase is Phase.FENCED
