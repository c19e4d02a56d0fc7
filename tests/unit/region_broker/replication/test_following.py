"""What a follower asks, cuts, copies and reports, rule by rule: R4, R5, R8, KIP-101, KIP-279, KIP-320."""

from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication.effects import (
    AppendSlices,
    CheckEpochs,
    Connect,
    CutLog,
    Disconnect,
    DivergedBelowHighWatermark,
    FollowerEffect,
    HighWatermark,
    LogStart,
    SendFetch,
    SendReport,
    StartAt,
)
from region_broker.replication.events import (
    Connected,
    ConnectionBroken,
    EpochsChecked,
    Fetched,
    FollowerEvent,
    FollowLeader,
    LeaderLog,
    LocalLog,
    LogAdded,
    LogRemoved,
    LogsDurable,
    LogsLacking,
    LogsStartAt,
    Slice,
    Ticked,
)
from region_broker.replication.facts import LATEST, Drops, EpochEnd, EpochStart, LogHistory
from region_broker.replication.following import (
    ASK_AGAIN_MS,
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    HELD_BYTES_MAX,
    URGENT_FETCHES_MAX,
    FollowingCore,
    Stage,
)

A, B = (Member(node_id, UUID(int=node_id)) for node_id in (1, 2))
X, Y = (LogKey(UUID(int=number), 0) for number in (1, 2))
NONE = LeaderEpoch(-1)
E1, E2, E3, E5 = map(LeaderEpoch, (1, 2, 3, 5))


def local(
    *epochs: tuple[LeaderEpoch, int],
    end: int,
    durable: int | None = None,
    hw: int = 0,
    start: int = 0,
) -> LocalLog:
    history = LogHistory(tuple(EpochStart(*each) for each in epochs), start, end)
    return LocalLog(history, end if durable is None else durable, hw)


def answer(asked: LeaderEpoch, found: LeaderEpoch, end: int, start: int = 0) -> LeaderLog:
    return LeaderLog(asked, EpochEnd(found, end), start)


class Follower:
    """A core with a clock, connected on demand."""

    def __init__(self) -> None:
        """Follow nobody."""
        self.now_ms = 0
        self.core = FollowingCore()

    def step(self, event: FollowerEvent) -> list[FollowerEffect]:
        return self.core.step(event, self.now_ms)

    def connected(self, **logs: LocalLog) -> list[FollowerEffect]:
        [connect] = self.step(FollowLeader(E5, A))
        assert connect == Connect(1, A, E5)
        return self.step(Connected(1, {{"x": X, "y": Y}[name]: log for name, log in logs.items()}))

    def checked(self, *answers: tuple[LogKey, LeaderLog | None]) -> list[FollowerEffect]:
        return self.step(EpochsChecked(1, dict(answers)))

    def fetched(self, *slices: Slice) -> list[FollowerEffect]:
        return self.step(Fetched(1, slices))


def fetches(effects: list[FollowerEffect]) -> list[FollowerEffect]:
    """Return what of it asks for more."""
    return [effect for effect in effects if isinstance(effect, SendFetch)]


def copying(end: int = 3, durable: int | None = None, hw: int = 0) -> Follower:
    """Return a follower that copies X, whose history is the leader's; two fetches are under way."""
    follower = Follower()
    follower.connected(x=local((E1, 0), end=end, durable=durable, hw=hw))
    follower.checked((X, answer(E1, E1, 9)))
    return follower


# -- histories ------------------------------------------------------------------------------------


def test_R5_INV_RPF1_histories_are_compared_before_anything_is_copied_or_said() -> None:
    follower = Follower()
    effects = follower.connected(x=local((E1, 0), (E3, 4), end=6, durable=5), y=local(end=0))
    assert effects == [CheckEpochs(1, {X: E3, Y: LATEST})]
    assert follower.step(LogsDurable({X: 6})) == []
    assert follower.checked((X, answer(E3, E3, 8)), (Y, answer(LATEST, NONE, 0))) == [
        SendFetch(1, {X: 6, Y: 0}, (), {X: 6, Y: 0}, {}),
        SendFetch(1, {}, (), {}, {}),
    ]


@pytest.mark.parametrize(
    ("found", "end", "cut"),
    [
        (E3, 5, 5),  # the leader has less of the same epoch
        (E3, 4, 4),
        (E1, 2, 2),  # the leader's epoch 1 ended before ours
        (E1, 4, 4),
        (E1, 9, 4),  # ours ended before the leader's
        (NONE, 0, 0),  # the leader has nothing as old
    ],
)
def test_R5_a_log_is_cut_to_where_the_histories_meet(
    found: LeaderEpoch, end: int, cut: int
) -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), (E3, 4), end=6))
    effects = follower.checked((X, answer(E3, found, end)))
    assert effects[:2] == [CutLog(X, cut), SendFetch(1, {X: cut}, (), {X: cut}, {})]


def test_R8_what_a_cut_leaves_is_durable() -> None:
    """The log is synced before it is cut, and nobody tells a sync that moved nothing: unreported, it would hold HW up for ever."""
    follower = Follower()
    follower.connected(x=local((E1, 0), end=6, durable=2))
    effects = follower.checked((X, answer(E1, E1, 4)))
    assert effects[:2] == [CutLog(X, 4), SendFetch(1, {X: 4}, (), {X: 4}, {})]


def test_R5_a_log_that_the_leader_has_whole_is_not_cut() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=6))
    assert follower.checked((X, answer(E1, E1, 6)))[0] == SendFetch(1, {X: 6}, (), {X: 6}, {})


def test_R5_histories_are_asked_about_until_they_meet() -> None:
    """KIP-279: two leaders wrote in turn, and neither had what the other one wrote."""
    follower = Follower()
    follower.connected(x=local((E1, 0), (E3, 2), end=6))
    assert follower.checked((X, answer(E3, E2, 5))) == [CheckEpochs(1, {X: E1})]
    assert follower.checked((X, answer(E1, E1, 1)))[0] == CutLog(X, 1)


@pytest.mark.parametrize(("end", "hw", "stops"), [(4, 5, True), (5, 5, False), (4, 4, False)])
def test_INV_RPF2_no_log_is_cut_below_its_hw(end: int, hw: int, stops: bool) -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=6, hw=hw))
    effects = follower.checked((X, answer(E1, E1, end)))
    assert (effects[0] == DivergedBelowHighWatermark(X, end, hw)) == stops
    assert (effects[0] == CutLog(X, end)) != stops
    assert follower.core.stage(X) is (Stage.STOPPED if stops else Stage.COPIED)
    if stops:
        assert effects[1:] == [SendFetch(1, {}, (), {}, {})] * 2


def test_an_emptied_folder_copies_everything_from_where_the_leaders_log_starts() -> None:
    follower = Follower()
    assert follower.connected(x=local(end=0)) == [CheckEpochs(1, {X: LATEST})]
    effects = follower.checked((X, answer(LATEST, E1, 9, start=7)))
    assert effects[:2] == [StartAt(X, 7), SendFetch(1, {X: 7}, (), {X: 7}, {})]


def test_a_log_that_the_leaders_retention_has_passed_starts_again() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=3, hw=3))
    assert follower.checked((X, answer(E1, NONE, 5, start=5)))[0] == StartAt(X, 5)


def test_a_folder_that_was_wound_back_is_copied_on_from_its_end() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=2, hw=2))
    assert follower.checked((X, answer(E1, E1, 8)))[0] == SendFetch(1, {X: 2}, (), {X: 2}, {})


def test_an_answer_to_an_older_question_is_left() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=6))
    follower.step(LogRemoved(X))
    assert follower.step(LogAdded(X, local((E2, 0), end=6)))[0] == CheckEpochs(1, {X: E2})
    assert follower.checked((X, answer(E1, E1, 3))) == []
    assert follower.core.stage(X) is Stage.ASKED
    assert follower.checked((X, answer(E2, E2, 6))) != []


def test_INV_RPF2_a_log_that_has_stopped_is_not_copied_on_by_another_answer() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=6, hw=5))
    [stopped, *_] = follower.checked((X, answer(E1, E1, 3)))
    assert stopped == DivergedBelowHighWatermark(X, 3, 5)
    assert follower.checked((X, answer(E1, E1, 9))) == []
    assert follower.core.stage(X) is Stage.STOPPED


@pytest.mark.parametrize(
    ("own", "answered", "meets_at"),
    [
        (local((E1, 5), end=9, hw=5, start=5), answer(E1, E1, 3), 3),
        (local((E3, 5), end=9, hw=9, start=5), answer(E3, NONE, 0), 0),
        (local(end=5, hw=5, start=5), answer(LATEST, E1, 3), 3),
        (local(end=5, hw=5, start=5), answer(LATEST, NONE, 0), 0),
        (local((E1, 5), end=9, hw=0, start=5), answer(E1, E1, 3), 3),
    ],
)
def test_INV_RPH3_a_log_that_starts_where_the_leaders_has_ended_shares_nothing_with_it(
    own: LocalLog, answered: LeaderLog, meets_at: int
) -> None:
    """1. It has deleted by retention what another node ends in. 2. That one is elected uncleanly. 3. What it writes where this log has
    nothing would be missing here, and this one would be in sync. Another log goes on."""
    follower = Follower()
    follower.connected(x=own, y=local((E1, 0), end=2, hw=2))
    effects = follower.checked((X, answered), (Y, answer(E1, E1, 4)))
    [stopped] = [each for each in effects if isinstance(each, DivergedBelowHighWatermark)]
    assert (stopped.key, stopped.meets_at) == (X, meets_at)
    assert stopped.high_watermark >= own.history.log_start_offset
    assert follower.core.stage(X) is Stage.STOPPED
    assert SendFetch(1, {Y: 2}, (), {Y: 2}, {}) in effects


def test_INV_RPH3_a_log_without_records_asks_for_the_leaders_end() -> None:
    follower = Follower()
    own = local(end=5, hw=5, start=5)
    assert follower.connected(x=own) == [CheckEpochs(1, {X: LATEST})]
    effects = follower.checked((X, answer(LATEST, E3, 8)))
    assert effects[0] == SendFetch(1, {X: 5}, (), {X: 5}, {})


@pytest.mark.parametrize(
    ("own", "found", "held_to", "meets_at"),
    [
        (local((E1, 0), end=150, hw=100), EpochEnd(E1, 160), 80, 100),
        (local((E1, 0), end=150, hw=0), EpochEnd(E1, 160), 80, 80),
        (local((E1, 0), end=150, hw=0)._replace(cleaned_below=90), EpochEnd(E1, 160), 80, 90),
        (local((E1, 0), end=150, hw=100), EpochEnd(E1, 160), None, 150),
        (local((E1, 0), (E2, 100), end=150, hw=150), EpochEnd(E1, 200), 95, 150),
        (local((E1, 0), (E2, 100), end=180, hw=150), EpochEnd(E1, 200), 95, 150),
    ],
)
def test_INV_RPH4_where_the_leader_has_cleaned_only_what_is_committed_stays(
    own: LocalLog, found: EpochEnd, held_to: int | None, meets_at: int
) -> None:
    """What it has between its last batch and the next epoch's first one, and a version that does not tell."""
    follower = Follower()
    follower.connected(x=own)
    answered = LeaderLog(own.history.latest, found, 0, held_to=held_to)
    cuts = follower.core.cuts_by({X: answered})
    effects = follower.checked((X, answered))
    is_cut = meets_at < own.history.end_offset
    assert cuts == ({X: meets_at} if is_cut else {})
    assert (CutLog(X, meets_at) in effects) is is_cut
    assert SendFetch(1, {X: meets_at}, (), {X: meets_at}, {}) in effects


def test_INV_RPH4_INV_RPF2_what_parts_below_the_leaders_last_batch_stops_as_ever() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), (E2, 100), end=180, hw=150))
    [stopped, *_] = follower.checked((X, LeaderLog(E2, EpochEnd(E1, 200), 0, held_to=120)))
    assert stopped == DivergedBelowHighWatermark(X, 100, 150)


# -- what a leader has dropped --------------------------------------------------------------------


def dropped(end: int, below: int, times: int = 1, start: int = 0) -> LeaderLog:
    """Return the answer of a leader of epoch 1 whose log ends at `end`, and has been cleaned."""
    return answer(E1, E1, end, start)._replace(drops=Drops(below, times))


def returning(drops: LeaderLog, end: int = 440, hw: int = 0) -> list[FollowerEffect]:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=end, hw=hw))
    assert follower.core.cuts_by({X: drops}) == {}
    return follower.checked((X, drops))[:2]


def test_INV_RPF10_what_ends_below_a_dropped_tombstone_is_given_up_and_copied_whole() -> None:
    assert returning(dropped(2000, below=501), hw=400) == [
        StartAt(X, 0),
        SendFetch(1, {X: 0}, (), {X: 0}, {}),
    ]
    assert returning(dropped(2000, below=501, start=30))[0] == StartAt(X, 30)


@pytest.mark.parametrize("below", [440, 1, 0])
def test_INV_RPF10_what_has_all_that_was_dropped_is_copied_on(below: int) -> None:
    assert returning(dropped(2000, below))[0] == SendFetch(1, {X: 440}, (), {X: 440}, {})


def test_INV_RPF10_who_is_told_nothing_copies_on() -> None:
    """Who is in sync, and whose leader is of an older version."""
    assert returning(answer(E1, E1, 2000))[0] == SendFetch(1, {X: 440}, (), {X: 440}, {})


def test_INV_RPF10_INV_RPF2_what_parts_below_hw_stops_though_something_was_dropped() -> None:
    assert returning(dropped(300, below=501), hw=400)[0] == DivergedBelowHighWatermark(X, 300, 400)


def begun_anew() -> Follower:
    """Return a follower that has given up X, and has copied 100 records of it, when the session ends."""
    follower = Follower()
    follower.connected(x=local((E1, 0), end=440))
    follower.checked((X, dropped(2000, below=501)))
    follower.fetched(Slice(X, 0, 100, 2000, 0, 10, Drops(501, 1)))
    follower.step(ConnectionBroken(1))
    follower.now_ms = BACKOFF_MS_MIN
    assert follower.step(Ticked()) == [Connect(2, A, E5)]
    follower.step(Connected(2, {X: local((E1, 0), end=100)}))
    return follower


@pytest.mark.parametrize(("times", "goes_on_at"), [(1, 100), (2, 0)])
def test_INV_RPF10_a_copy_begun_anew_goes_on_unless_something_was_dropped_since(
    times: int, goes_on_at: int
) -> None:
    follower = begun_anew()
    effects = follower.step(EpochsChecked(2, {X: dropped(2000, 501, times)}))
    assert fetches(effects)[0] == SendFetch(2, {X: goes_on_at}, (), {X: goes_on_at}, {})
    assert (StartAt(X, 0) in effects) is (times == 2)


def test_INV_RPF10_another_leader_counts_for_itself() -> None:
    follower = begun_anew()
    follower.step(FollowLeader(LeaderEpoch(6), B))
    follower.step(Connected(3, {X: local((E1, 0), end=100)}))
    assert StartAt(X, 0) in follower.step(EpochsChecked(3, {X: dropped(2000, 501)}))


def test_INV_RPF10_a_log_that_was_empty_is_no_older_than_what_was_dropped_before() -> None:
    follower = Follower()
    follower.connected(x=local(end=0))
    told = dropped(2000, below=501)._replace(asked=LATEST)
    effects = follower.checked((X, told))
    assert effects[0] == SendFetch(1, {X: 0}, (), {X: 0}, {})
    assert Disconnect(1) not in follower.fetched(Slice(X, 0, 10, 2000, 0, 10, Drops(501, 1)))
    effects = follower.fetched(Slice(X, 10, 20, 2000, 0, 10, Drops(501, 2)))
    assert effects == [Disconnect(1)], "a tombstone may lie in front of 10 no more"


def test_INV_RPF10_what_is_dropped_in_front_of_what_is_copied_has_it_compared_anew() -> None:
    follower = copying(end=3)
    assert Disconnect(1) not in follower.fetched(Slice(X, 3, 5, 5, 0, 0, Drops(3, 1)))
    assert follower.fetched(Slice(X, 5, 9, 9, 0, 0, Drops(7, 2))) == [Disconnect(1)]


# -- logs that come and go ------------------------------------------------------------------------


def test_a_log_that_the_leader_does_not_have_yet_is_asked_for_again_and_holds_up_no_other() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=3), y=local(end=0))
    effects = follower.checked((X, answer(E1, E1, 3)), (Y, None))
    assert effects[0] == SendFetch(1, {X: 3}, (), {X: 3}, {})
    follower.now_ms = ASK_AGAIN_MS - 1
    assert follower.step(Ticked()) == []
    follower.now_ms = ASK_AGAIN_MS
    assert follower.step(Ticked()) == [CheckEpochs(1, {Y: LATEST})]
    assert follower.checked((Y, answer(LATEST, NONE, 0))) == [SendFetch(1, {Y: 0}, (), {Y: 0}, {})]


def test_a_log_made_meanwhile_is_compared_and_then_copied() -> None:
    follower = copying()
    assert follower.step(LogAdded(Y, local(end=0))) == [CheckEpochs(1, {Y: LATEST})]
    assert follower.checked((Y, answer(LATEST, NONE, 0))) == [SendFetch(1, {Y: 0}, (), {Y: 0}, {})]


def test_a_log_that_is_gone_is_forgotten_and_what_comes_of_it_left() -> None:
    follower = copying()
    assert follower.step(LogRemoved(X)) == [SendFetch(1, {}, (X,), {}, {})]
    assert follower.fetched(Slice(X, 3, 5, 5, 0)) == []
    assert follower.step(LogsDurable({X: 5})) == []


def test_a_log_that_the_leader_was_not_asked_to_send_is_not_forgotten_there() -> None:
    follower = copying()
    follower.step(LogAdded(Y, local(end=0)))
    assert follower.step(LogRemoved(Y)) == []


def test_INV_RPF6_many_new_logs_do_not_make_many_fetches() -> None:
    follower = copying()
    keys = [LogKey(UUID(int=100 + number), 0) for number in range(3 * URGENT_FETCHES_MAX)]
    sent = 0
    for key in keys:
        follower.step(LogAdded(key, local(end=0)))
        effects = follower.step(EpochsChecked(1, {key: answer(LATEST, NONE, 0)}))
        sent += sum(isinstance(effect, SendFetch) for effect in effects)
    assert sent == URGENT_FETCHES_MAX - 2
    [fetch] = follower.fetched()
    assert isinstance(fetch, SendFetch)
    assert set(fetch.positions) == set(keys[sent:])


# -- copying --------------------------------------------------------------------------------------


def test_R8_INV_RPF4_what_is_reported_is_durable_and_only_what_has_moved() -> None:
    follower = copying(end=3, durable=2)
    part = Slice(X, 3, 5, 0, 0)
    assert follower.fetched(part) == [AppendSlices((part,)), LogStart(X, 0)]
    assert follower.step(LogsDurable({X: 4})) == [SendFetch(1, {}, (), {X: 4}, {})]
    assert follower.step(LogsDurable({X: 4})) == []
    assert follower.step(LogsDurable({X: 5})) == [SendReport(1, {X: 5}, {})]
    assert follower.fetched() == [SendFetch(1, {}, (), {}, {})]


def test_INV_RPF6_a_fetch_waits_for_the_report_of_what_is_little() -> None:
    follower = copying(end=3, durable=3)
    little, much = (
        Slice(X, 3, 5, 0, 0, HELD_BYTES_MAX),
        Slice(X, 5, 6, 0, 0, 1),
    )
    assert fetches(follower.fetched(little)) == []
    assert fetches(follower.fetched(much)) == [SendFetch(1, {}, (), {}, {})], "one is under way"
    assert fetches(follower.step(LogsDurable({X: 6}))) == [SendFetch(1, {}, (), {X: 6}, {})]
    assert fetches(follower.fetched(Slice(X, 6, 6, 6, 0))) == [SendFetch(1, {}, (), {}, {})], (
        "nothing waits for its sync"
    )


def test_INV_RPF6_no_fetch_waits_where_much_comes_or_a_log_is_gone() -> None:
    follower = copying(end=3, durable=3)
    much = Slice(X, 3, 9, 0, 0, HELD_BYTES_MAX + 1)
    assert fetches(follower.fetched(much)) == [SendFetch(1, {}, (), {}, {})]
    follower = copying(end=3, durable=3)
    assert fetches(follower.fetched(Slice(X, 3, 5, 0, 0, 1))) == []
    assert fetches(follower.step(LogRemoved(X))) == [SendFetch(1, {}, (X,), {}, {})]


def test_INV_RPF6_what_is_durable_goes_with_the_next_fetch_where_one_may_go() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=3, durable=1))
    follower.step(LogsDurable({X: 2}))
    effects = follower.checked((X, answer(E1, E1, 3)))
    assert effects[0] == SendFetch(1, {X: 3}, (), {X: 2}, {})


def test_INV_RPF7_hw_is_what_the_leader_says_as_far_as_it_is_durable_here() -> None:
    follower = copying(end=3, durable=2, hw=1)
    part = Slice(X, 3, 6, 5, 0)
    assert HighWatermark(X, 2) in follower.fetched(part)
    assert follower.step(LogsDurable({X: 4})) == [
        HighWatermark(X, 4), SendFetch(1, {}, (), {X: 4}, {})
    ]  # fmt: skip
    assert HighWatermark(X, 5) in follower.step(LogsDurable({X: 6}))
    assert follower.fetched(Slice(X, 6, 6, 3, 0)) == [
        SendFetch(1, {}, (), {}, {})
    ]  # a new leader's


def test_where_the_leaders_log_starts_is_learned() -> None:
    follower = copying()
    assert LogStart(X, 2) in follower.fetched(Slice(X, 3, 3, 3, 2))
    assert LogStart(X, 2) not in follower.fetched(Slice(X, 3, 3, 3, 2))
    assert LogStart(X, 1) in follower.fetched(Slice(X, 3, 3, 3, 1)), "an order was void (T14)"


def test_an_answer_that_goes_on_elsewhere_ends_the_session() -> None:
    follower = copying()
    assert follower.fetched(Slice(X, 4, 5, 5, 0)) == [Disconnect(1)]
    follower.now_ms = BACKOFF_MS_MIN
    assert follower.step(Ticked()) == [Connect(2, A, E5)]


# -- sessions and leader epochs -------------------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        Connected(1, {X: local((E1, 0), end=3)}),
        EpochsChecked(1, {X: answer(E1, E1, 0)}),
        Fetched(1, (Slice(X, 3, 5, 5, 0),)),
        ConnectionBroken(1),
    ],
)
def test_R4_INV_RPF3_what_comes_of_a_former_session_changes_nothing(late: FollowerEvent) -> None:
    follower = copying()
    assert follower.step(FollowLeader(LeaderEpoch(6), B)) == [
        Disconnect(1),
        Connect(2, B, LeaderEpoch(6)),
    ]
    assert follower.step(late) == []
    follower.step(Connected(2, {X: local((E1, 0), end=3)}))
    assert follower.step(late) == []
    assert follower.step(EpochsChecked(2, {X: answer(E1, E1, 9)}))[0] == SendFetch(
        2, {X: 3}, (), {X: 3}, {}
    )


@pytest.mark.parametrize("leader_epoch", [E5, E3])
def test_R4_INV_RPF5_a_leader_epoch_that_is_not_newer_changes_nothing(
    leader_epoch: LeaderEpoch,
) -> None:
    follower = copying()
    assert follower.step(FollowLeader(leader_epoch, B)) == []
    assert follower.core.leader_epoch == E5


def test_R4_whoever_leads_itself_copies_nothing_more() -> None:
    follower = copying()
    assert follower.step(FollowLeader(LeaderEpoch(6), None)) == [Disconnect(1)]
    assert follower.fetched(Slice(X, 3, 5, 5, 0)) == []
    follower.now_ms = 10 * BACKOFF_MS_MAX
    assert follower.step(Ticked()) == []


def test_a_connection_that_breaks_is_made_again_after_a_pause_that_doubles() -> None:
    follower = Follower()
    follower.step(FollowLeader(E5, A))
    pauses = []
    for session in range(1, 9):
        assert follower.step(ConnectionBroken(session)) == []
        begun_ms = follower.now_ms
        while not (effects := follower.step(Ticked())):
            follower.now_ms += 1
        assert effects == [Connect(session + 1, A, E5)]
        pauses.append(follower.now_ms - begun_ms)
    assert pauses == [50, 100, 200, 400, 800, 1600, BACKOFF_MS_MAX, BACKOFF_MS_MAX]


def test_a_session_that_has_ended_is_not_ended_again() -> None:
    follower = copying()
    follower.step(ConnectionBroken(1))
    assert follower.step(FollowLeader(LeaderEpoch(6), B)) == [Connect(2, B, LeaderEpoch(6))]


def test_a_new_session_begins_with_what_is_there_now() -> None:
    follower = copying(end=3, durable=2)
    follower.fetched(Slice(X, 3, 5, 0, 0))
    follower.step(ConnectionBroken(1))
    assert follower.core.stage(X) is None
    follower.now_ms = BACKOFF_MS_MIN
    follower.step(Ticked())
    assert follower.step(Connected(2, {X: local((E1, 0), (E5, 3), end=5, durable=3)})) == [
        CheckEpochs(2, {X: E5})
    ]
    assert follower.step(EpochsChecked(2, {X: answer(E5, E5, 5)}))[0] == SendFetch(
        2, {X: 5}, (), {X: 3}, {}
    )


def test_a_group_without_logs_is_followed_all_the_same() -> None:
    """Whoever has all logs of none is caught up, and the leader hears it."""
    follower = Follower()
    assert follower.connected() == [SendFetch(1, {}, (), {}, {})] * 2


# -- log starts -----------------------------------------------------------------------------------


def test_INV_RPF8_a_start_is_reported_once_the_driver_says_that_it_is_durable() -> None:
    follower = copying()
    assert follower.fetched(Slice(X, 3, 3, 3, 2)) == [
        HighWatermark(X, 3), LogStart(X, 2), SendFetch(1, {}, (), {}, {}),
    ]  # fmt: skip
    assert follower.step(LogsStartAt({X: 2})) == [SendReport(1, {}, {X: 2})]
    assert follower.step(LogsDurable({})) == [], "once"
    assert follower.step(LogsStartAt({X: 2})) == [], "and not again"
    follower.fetched(Slice(X, 3, 3, 3, 3))
    follower.fetched()
    assert follower.step(LogsStartAt({X: 3})) == [SendReport(1, {}, {X: 3})]


def test_INV_RPF8_a_log_that_starts_above_the_leaders_is_reported_as_the_leader_has_it() -> None:
    """It goes back there: the leader would answer orders to delete that this log is to have, and gives up."""
    follower = Follower()
    follower.connected(x=local((E1, 4), end=6, start=4, hw=4))
    effects = follower.checked((X, answer(E1, E1, 6)))
    assert effects[0] == SendFetch(1, {X: 6}, (), {X: 6}, {})
    assert LogStart(X, 1) in follower.fetched(Slice(X, 6, 6, 6, 1))
    assert follower.step(LogsStartAt({X: 4})) == [SendReport(1, {}, {X: 4})], "no byte is below"


def test_INV_RPF8_each_session_begins_with_what_the_leader_says_of_the_start() -> None:
    follower = copying()
    follower.fetched(Slice(X, 3, 3, 3, 2))
    follower.step(LogsStartAt({X: 2}))
    follower.step(ConnectionBroken(1))
    follower.now_ms = BACKOFF_MS_MIN
    follower.step(Ticked())
    follower.step(Connected(2, {X: local((E1, 0), end=3, hw=3)}))
    follower.step(EpochsChecked(2, {X: answer(E1, E1, 9)}))
    assert LogStart(X, 2) in follower.step(Fetched(2, (Slice(X, 3, 3, 3, 2),)))
    assert follower.step(LogsStartAt({X: 2})) == [SendReport(2, {}, {X: 2})]


def test_INV_RPF8_a_start_that_was_not_reported_yet_is_not_when_the_log_is_gone() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=3), y=local((E1, 0), end=3))
    follower.checked((X, answer(E1, E1, 9)))
    follower.fetched(Slice(X, 3, 3, 3, 2))
    follower.step(LogRemoved(X))
    assert follower.step(LogsStartAt({X: 2})) == []


def test_INV_RPF8_the_start_of_a_log_that_begins_anew_is_reported_after_that() -> None:
    follower = Follower()
    follower.connected(x=local((E1, 0), end=2))
    effects = follower.checked((X, answer(E1, E1, 9, start=7)))
    assert effects[:2] == [StartAt(X, 7), SendFetch(1, {X: 7}, (), {X: 7}, {})]
    assert follower.step(LogsStartAt({X: 7})) == [SendReport(1, {}, {X: 7})]


def test_INV_RPF3_the_start_of_a_log_that_is_not_copied_is_not_said() -> None:
    follower = copying()
    assert follower.step(LogsStartAt({Y: 2})) == []
    follower.step(ConnectionBroken(1))
    assert follower.step(LogsStartAt({X: 2})) == []
    follower.now_ms = BACKOFF_MS_MIN
    follower.step(Ticked())
    follower.step(Connected(2, {X: local((E1, 0), end=3)}))
    assert follower.step(LogsStartAt({X: 2})) == []
    assert follower.step(EpochsChecked(2, {X: answer(E1, E1, 9)}))[0] == SendFetch(
        2, {X: 3}, (), {X: 3}, {}
    )


def test_INV_RPF1_INV_RPF4_a_log_that_was_added_is_not_reported_before_it_was_compared() -> None:
    """What it has beyond the meeting point would count at the leader, and is cut then."""
    follower = copying()
    follower.step(LogAdded(Y, local((E1, 0), end=6, durable=4)))
    assert follower.step(LogsDurable({Y: 6})) == []
    assert follower.step(LogsDurable({X: 3, Y: 6})) == []
    effects = follower.checked((Y, answer(E1, E1, 5)))
    assert effects[0] == CutLog(Y, 5)
    assert [each.durable_ends for each in effects if isinstance(each, SendFetch)] == [{Y: 5}]


def between_sessions(follower: Follower) -> None:
    """Let the session end, and another one begin, without any log."""
    follower.step(ConnectionBroken(1))
    follower.now_ms = BACKOFF_MS_MIN
    assert follower.step(Ticked()) == [Connect(2, A, E5)]


def test_INV_RPF1_what_was_still_to_be_said_in_a_session_is_not_said_in_the_next_one() -> None:
    follower = copying()
    follower.step(LogAdded(Y, local(end=0)))
    for position in (
        3,
        4,
    ):  # little, and not durable: no other fetch goes, and then none until Y was compared
        follower.fetched(Slice(X, position, position + 1, 3, 0, 10))
    assert follower.step(LogsDurable({X: 5})) == []
    assert follower.step(LogsStartAt({X: 2})) == []
    between_sessions(follower)
    assert follower.step(Connected(2, {}))[0] == SendFetch(2, {}, (), {}, {})


def test_INV_RPF1_what_was_to_be_forgotten_in_a_session_is_not_named_in_the_next_one() -> None:
    follower = copying()
    follower.step(LogAdded(Y, local(end=0)))
    for position in (3, 4):
        follower.fetched(Slice(X, position, position + 1, 3, 0, 10))
    assert follower.step(LogRemoved(X)) == []
    between_sessions(follower)
    assert follower.step(Connected(2, {}))[0] == SendFetch(2, {}, (), {}, {})


def test_INV_RPF1_a_log_that_was_still_to_be_asked_for_is_not_in_the_next_session() -> None:
    follower = Follower()
    follower.connected()
    keys = [LogKey(UUID(int=number), 0) for number in range(10, 12 + URGENT_FETCHES_MAX)]
    for key in keys:
        follower.step(LogAdded(key, local(end=0)))
        follower.checked((key, answer(LATEST, NONE, 0)))
    between_sessions(follower)
    assert follower.step(Connected(2, {}))[0] == SendFetch(2, {}, (), {}, {})


def test_INV_RPF3_nothing_comes_of_a_session_that_is_broken_before_the_next_one_begins() -> None:
    follower = copying()
    follower.step(ConnectionBroken(1))
    assert follower.step(Connected(1, {X: local((E1, 0), end=3)})) == []
    assert follower.step(EpochsChecked(1, {X: answer(E1, E1, 9)})) == []
    assert follower.step(ConnectionBroken(1)) == []
    follower.now_ms = BACKOFF_MS_MIN
    assert follower.step(Ticked()) == [Connect(2, A, E5)], "nor does it wait longer"


def test_INV_RPF9_which_logs_have_stopped_is_said_when_it_changes_and_first_in_a_session() -> None:
    follower = copying()
    gone = frozenset({Y})
    assert follower.step(LogsLacking(gone)) == [SendReport(1, {}, {}, gone)]
    assert follower.step(LogsLacking(gone)) == []
    follower.step(ConnectionBroken(1))
    follower.now_ms += BACKOFF_MS_MAX
    follower.step(Ticked())
    follower.step(Connected(2, {X: local((E1, 0), end=3)}))
    assert follower.step(EpochsChecked(2, {X: answer(E1, E1, 9)}))[0] == SendFetch(
        2, {X: 3}, (), {X: 3}, {}, gone
    )
    assert follower.step(LogsLacking(frozenset())) == [SendReport(2, {}, {}, frozenset())]


def test_INV_RPF9_who_lacks_nothing_says_nothing_of_it() -> None:
    follower = Follower()
    follower.step(LogsLacking(frozenset()))
    follower.connected(x=local((E1, 0), end=3))
    assert follower.checked((X, answer(E1, E1, 9)))[0] == SendFetch(1, {X: 3}, (), {X: 3}, {}, None)


def test_INV_RPF9_what_is_known_before_a_session_is_said_once_it_has_begun() -> None:
    follower = Follower()
    assert follower.step(LogsLacking(frozenset({Y}))) == []
    assert follower.step(LogsLacking(frozenset())) == []
    follower.connected(x=local((E1, 0), end=3))
    first, second = follower.checked((X, answer(E1, E1, 9)))
    assert first == SendFetch(1, {X: 3}, (), {X: 3}, {}, None), "there is nothing to be said"
    assert second == SendFetch(1, {}, (), {}, {}, None)


def little(position: int, end: int) -> Slice:
    return Slice(X, position, end, 0, 0, 1)


def test_INV_RPF6_the_other_fetches_wait_until_all_that_came_is_durable() -> None:
    follower = copying()
    assert fetches(follower.fetched(little(3, 5))) == []
    assert fetches(follower.step(LogsDurable({X: 4}))) != []
    assert fetches(follower.fetched(Slice(X, 5, 5, 0, 0))) == [], "5 is not durable yet"
    assert fetches(follower.step(LogsDurable({X: 5}))) != []


def test_INV_RPF6_what_was_not_durable_in_another_session_or_of_a_log_that_is_gone_holds_nothing() -> (
    None
):
    follower = copying()
    assert fetches(follower.fetched(little(3, 5))) == []
    follower.step(ConnectionBroken(1))
    follower.now_ms += BACKOFF_MS_MAX
    follower.step(Ticked())
    follower.step(Connected(2, {X: local((E1, 0), end=5, durable=3)}))
    assert len(fetches(follower.step(EpochsChecked(2, {X: answer(E1, E1, 9)})))) == 2
    follower = copying()
    assert fetches(follower.fetched(little(3, 5))) == []
    assert len(fetches(follower.step(LogRemoved(X)))) == 1
    assert len(fetches(follower.fetched())) == 1


def test_INV_RPF6_nothing_is_reported_of_a_log_that_is_gone() -> None:
    """What is to be said waits for the history of another log, and the log goes meanwhile."""
    follower = copying()
    follower.fetched(Slice(X, 3, 5, 0, 0, 100))
    follower.step(LogAdded(Y, local(end=0)))
    follower.fetched()
    assert follower.step(LogsDurable({X: 5})) == []
    assert follower.step(LogRemoved(X)) == []
    (fetch, *_) = fetches(follower.checked((Y, answer(LATEST, NONE, 0))))
    assert fetch == SendFetch(1, {Y: 0}, (X,), {Y: 0}, {})
