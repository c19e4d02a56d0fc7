"""The link's decisions, step by step; the expected effects are INV-LK1 to INV-LK5 and rules T15, T23."""

from uuid import UUID

import pytest

from geo_replicator.effects import (
    ApplyTopics,
    AwaitTidemarkToDelete,
    CheckEpochs,
    Connect,
    Disconnect,
    Diverged,
    HandOverDivergence,
    LinkEffect,
    LogsReconciled,
    ReadRegistry,
    SendFetch,
    ShowHistory,
    StartLogs,
    TakeBackStarts,
    WaitBackoff,
)
from geo_replicator.events import (
    Answered,
    BackoffOver,
    DivergenceResolved,
    Fetched,
    FetchedSlice,
    HandshakeDone,
    HistoryShown,
    LinkBroken,
    LinkStarted,
    LogsChecked,
    MirrorLogEnd,
    PrimaryLogEnd,
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.lag import Lag, LagBook
from geo_replicator.lineage import LogKey
from geo_replicator.link.comparing import agrees
from geo_replicator.link.core import BACKOFF_MS_MAX, LinkCore, LinkState
from geo_replicator.link.cursor import Cursor, CursorBroken
from geo_replicator.topology import MirrorTopic
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch

ORDERS = MirrorTopic(UUID(int=1), "orders", 2)
OTHER = MirrorTopic(UUID(int=2), "other", 1)
P0, P1 = ORDERS.logs()
EPOCH = LeaderEpoch(8 << 16)


def syncing() -> LinkCore:
    """A link after its handshake with the primary."""
    core = LinkCore(region_epoch=RegionEpoch(8), primary_region="primary")
    assert core.step(LinkStarted()) == [Connect()]
    assert core.step(HandshakeDone("primary", RegionEpoch(8), True)) == [ShowHistory()]
    assert core.step(HistoryShown(RegionEpoch(8))) == [ReadRegistry()]
    return core


def checking(**ends: tuple[LeaderEpoch, int] | tuple[LeaderEpoch, int, int]) -> LinkCore:
    """A link that knows where its logs p0 and p1 end: (leader epoch, offset, hidden below)."""
    core = syncing()
    core.step(RegistryRead(5, (ORDERS,), (ORDERS,)))
    logs = {P0: MirrorLogEnd(*ends["p0"]), P1: MirrorLogEnd(*ends["p1"])}
    assert core.step(TopicsApplied(logs)) == [CheckEpochs(logs)]
    return core


def part(key: LogKey, start: int, end: int, *, high_watermark: int | None = None) -> FetchedSlice:
    return FetchedSlice(key, start, end, 10, high_watermark or end, 0, 7)


def answer(core: LinkCore, metadata_version: int, *slices: FetchedSlice) -> list[LinkEffect]:
    """Let an answer come; it is taken where nothing is to be done before."""
    return core.step(Answered(metadata_version)) or core.step(Fetched(slices))


def streaming() -> LinkCore:
    core = checking(p0=(NO_LEADER_EPOCH, 0), p1=(NO_LEADER_EPOCH, 0))
    core.step(
        LogsChecked(
            {P0: PrimaryLogEnd(NO_LEADER_EPOCH, 9, 0), P1: PrimaryLogEnd(NO_LEADER_EPOCH, 9, 0)}
        )
    )
    return core


# Holds INV-LK4.
def test_topics_are_created_and_reconfigured_and_those_gone_wait_for_a_tidemark() -> None:
    core = syncing()
    changed = MirrorTopic(ORDERS.topic_id, "orders", 2, configs={"retention.ms": "1"})
    new = MirrorTopic(UUID(int=3), "new", 1)
    assert core.step(RegistryRead(9, (changed, new), (ORDERS, OTHER))) == [
        AwaitTidemarkToDelete(9, (OTHER,)),
        ApplyTopics((new,), (changed,), (changed, new)),
    ]


def test_logs_are_checked_before_they_are_fetched_from_where_the_mirror_ends() -> None:
    core = checking(p0=(EPOCH, 10), p1=(NO_LEADER_EPOCH, 0))
    answers = {P0: PrimaryLogEnd(EPOCH, 25, 0), P1: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0)}
    assert core.step(LogsChecked(answers)) == [
        LogsReconciled(RegionEpoch(8), (P0, P1)),
        SendFetch({P0: 10, P1: 0}, ()),
        SendFetch({}, ()),
    ]
    assert core.state is LinkState.STREAMING


# Holds INV-LK2.
@pytest.mark.parametrize(
    "primary",
    [
        PrimaryLogEnd(EPOCH, 9, 0),
        PrimaryLogEnd(LeaderEpoch(EPOCH - 1), 10, 0),
        PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0),
    ],
)
def test_T23_a_log_that_the_primary_does_not_hold_is_handed_over_and_checked_again(
    primary: PrimaryLogEnd,
) -> None:
    core = checking(p0=(EPOCH, 10), p1=(NO_LEADER_EPOCH, 0))
    answers = {P0: primary, P1: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0)}
    diverged = Diverged(P0, primary.leader_epoch, primary.end_offset, 10)
    assert core.step(LogsChecked(answers)) == [HandOverDivergence((diverged,))]
    cut = {P0: MirrorLogEnd(LeaderEpoch(EPOCH - 1), 4)}
    assert core.step(DivergenceResolved(cut)) == [
        CheckEpochs(
            {P0: MirrorLogEnd(LeaderEpoch(EPOCH - 1), 4), P1: MirrorLogEnd(NO_LEADER_EPOCH, 0)}
        )
    ]


def test_T14_an_empty_log_begins_where_the_primarys_begins() -> None:
    core = checking(p0=(NO_LEADER_EPOCH, 0), p1=(NO_LEADER_EPOCH, 0))
    answers = {
        P0: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 100),
        P1: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0),
    }
    assert core.step(LogsChecked(answers))[0] == StartLogs({P0: 100})
    assert core.cursor.positions == {P0: 100, P1: 0}


def test_T14_what_was_deleted_here_and_not_at_the_primary_is_there_again() -> None:
    core = checking(p0=(EPOCH, 10, 7), p1=(EPOCH, 10, 3))
    answers = {P0: PrimaryLogEnd(EPOCH, 20, 0, 4), P1: PrimaryLogEnd(EPOCH, 20, 0, 4)}
    assert core.step(LogsChecked(answers))[0] == TakeBackStarts({P0: 4})


def test_T14_a_primary_that_does_not_tell_where_readers_begin_takes_nothing_back() -> None:
    core = checking(p0=(EPOCH, 10, 7), p1=(EPOCH, 10, 3))
    answers = {P0: PrimaryLogEnd(EPOCH, 20, 0), P1: PrimaryLogEnd(EPOCH, 20, 0)}
    assert isinstance(core.step(LogsChecked(answers))[0], LogsReconciled)


def test_T14_a_log_that_retention_has_passed_is_not_continued_with_a_gap() -> None:
    core = checking(p0=(EPOCH, 10), p1=(NO_LEADER_EPOCH, 0))
    answers = {P0: PrimaryLogEnd(EPOCH, 200, 100), P1: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0)}
    effects = core.step(LogsChecked(answers))
    assert effects[:2] == [LogsReconciled(RegionEpoch(8), (P1,)), SendFetch({P1: 0}, ())]
    assert "seed it again" in core.waiting[P0]


# Holds INV-LD6, INV-LK8.
def test_T12_a_log_that_halts_waits_and_is_tried_again_while_the_others_are_copied() -> None:
    core = streaming()
    core.halt({P0: "its disk is gone"})
    assert answer(core, 5, part(P1, 0, 3)) == [SendFetch({}, (P0,))]
    assert core.cursor.positions == {P1: 3}
    core.look_again()
    assert answer(core, 5) == [ReadRegistry()]
    core.step(RegistryRead(5, (ORDERS,), (ORDERS,)))
    ends = {P0: MirrorLogEnd(EPOCH, 7), P1: MirrorLogEnd(EPOCH, 3)}
    assert core.step(TopicsApplied(ends)) == [CheckEpochs({P0: ends[P0]})]
    core.step(LogsChecked({P0: PrimaryLogEnd(EPOCH, 9, 0)}))
    assert (core.cursor.positions, core.waiting) == ({P0: 7, P1: 3}, {})


# Holds INV-LK3.
def test_two_fetches_are_under_way_and_each_answer_sends_one_more() -> None:
    core = streaming()
    assert answer(core, 5, part(P0, 0, 3)) == [SendFetch({}, ())]
    assert core.cursor.positions == {P0: 3, P1: 0}


def test_a_changed_registry_is_read_and_new_logs_join_the_session() -> None:
    core = streaming()
    assert answer(core, 6) == [ReadRegistry()]
    core.step(RegistryRead(6, (ORDERS, OTHER), (ORDERS,)))
    ends = {key: MirrorLogEnd(NO_LEADER_EPOCH, 0) for key in (P0, P1, *OTHER.logs())}
    assert core.step(TopicsApplied(ends)) == [
        CheckEpochs({OTHER.logs()[0]: MirrorLogEnd(NO_LEADER_EPOCH, 0)})
    ]
    effects = core.step(LogsChecked({OTHER.logs()[0]: PrimaryLogEnd(NO_LEADER_EPOCH, -1, 0)}))
    assert effects == [
        LogsReconciled(RegionEpoch(8), OTHER.logs()),
        SendFetch({OTHER.logs()[0]: 0}, ()),
    ]


def test_INV_LK10_an_answer_is_taken_once_the_registry_of_its_version_is_carried_out() -> None:
    core = streaming()
    assert core.step(Answered(6)) == [ReadRegistry()]
    core.step(RegistryRead(7, (ORDERS,), (ORDERS,)))
    assert core.step(TopicsApplied({})) == [SendFetch({}, ())], "one is under way, and one is held"
    assert core.step(Fetched((part(P0, 0, 3),))) == []
    assert core.step(Answered(6)) == [], "sent before the registry was read"
    assert core.step(Fetched((part(P0, 3, 5),))) == [SendFetch({}, ())]


def test_logs_of_deleted_topics_leave_the_session() -> None:
    core = streaming()
    answer(core, 6)
    core.step(RegistryRead(6, (), (ORDERS,)))
    assert core.step(TopicsApplied({})) == [SendFetch({}, (P0, P1))]


@pytest.mark.parametrize(
    ("region_epoch", "acting", "told"),
    [
        (0, False, "its data folder has no history"),
        (7, True, "before 8, which this one follows"),
        (17, True, "the lineage must be followed first"),
        (8, False, "does not act (yet)"),
    ],
)
def test_T23_only_the_region_that_acts_under_the_followed_epoch_is_followed(
    region_epoch: int, acting: bool, told: str
) -> None:
    core = LinkCore(region_epoch=RegionEpoch(8), primary_region="primary")
    core.step(LinkStarted())
    disconnect, wait = core.step(HandshakeDone("primary", RegionEpoch(region_epoch), acting))
    assert told in core.last_error
    assert isinstance(disconnect, Disconnect)
    assert isinstance(wait, WaitBackoff)
    assert core.session_count == 0


def test_pauses_double_up_to_a_bound_and_start_again_after_an_answer_was_taken() -> None:
    core = LinkCore(region_epoch=RegionEpoch(8), primary_region="primary")
    core.step(LinkStarted())
    waits = []
    for _ in range(8):
        waits += [e.wait_ms for e in core.step(LinkBroken("x")) if isinstance(e, WaitBackoff)]
        core.step(BackoffOver())
    assert waits == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]
    assert max(waits) == BACKOFF_MS_MAX
    core = streaming()
    answer(core, 5, part(P0, 0, 3))
    assert core.step(LinkBroken("x"))[1] == WaitBackoff(50)


def reach_streaming(core: LinkCore) -> None:
    """Take a link that paused through a session up to its first fetch."""
    core.step(BackoffOver())
    core.step(HandshakeDone("primary", RegionEpoch(8), True))
    core.step(HistoryShown(RegionEpoch(8)))
    core.step(RegistryRead(5, (ORDERS,), (ORDERS,)))
    core.step(
        TopicsApplied({P0: MirrorLogEnd(NO_LEADER_EPOCH, 0), P1: MirrorLogEnd(NO_LEADER_EPOCH, 0)})
    )
    core.step(
        LogsChecked(
            {P0: PrimaryLogEnd(NO_LEADER_EPOCH, 9, 0), P1: PrimaryLogEnd(NO_LEADER_EPOCH, 9, 0)}
        )
    )
    assert core.state is LinkState.STREAMING


def test_INV_LK5_a_session_of_which_no_answer_could_be_taken_makes_the_next_pause_no_shorter() -> (
    None
):
    core = streaming()
    assert core.step(LinkBroken("the disk is nearly full"))[1] == WaitBackoff(50)
    reach_streaming(core)
    assert core.step(LinkBroken("the disk is nearly full"))[1] == WaitBackoff(100)
    reach_streaming(core)
    answer(core, 5, part(P0, 0, 3))
    assert core.step(LinkBroken("x"))[1] == WaitBackoff(50)


# Holds INV-CU2.
def test_a_slice_that_does_not_continue_the_log_is_never_taken() -> None:
    cursor = Cursor({P0: 5})
    with pytest.raises(CursorBroken, match="stands at 5"):
        cursor.check(P0, 4)
    assert not cursor.check(P1, 0)
    cursor.advance(part(P0, 5, 8))
    assert cursor.positions == {P0: 8}


# Holds INV-LG1, INV-LG2.
def test_lag_counts_records_bytes_and_the_time_since_all_was_there() -> None:
    lag = LagBook()
    lag.note((part(P0, 0, 3), part(P1, 0, 2, high_watermark=10)), now_ms=1_000)
    assert lag.of(P0, now_ms=5_000) == Lag()
    assert lag.of(P1, now_ms=1_400) == Lag(8, 7, 400)
    lag.note((part(P1, 2, 4, high_watermark=12),), now_ms=1_500)
    assert lag.total(now_ms=1_600) == Lag(8, 7, 600)
    lag.note((part(P1, 4, 12),), now_ms=1_700)
    assert lag.total(now_ms=9_000) == Lag()


def test_INV_LG3_a_log_that_is_no_longer_copied_is_not_behind() -> None:
    lag = LagBook()
    lag.note((part(P0, 0, 3, high_watermark=9), part(P1, 0, 2, high_watermark=10)), now_ms=1_000)
    assert lag.total(now_ms=1_000).records == 14
    lag.forget(P1)
    assert lag.total(now_ms=1_000).records == 6
    lag.forget(P0)
    assert lag.total(now_ms=1_000) == Lag()


# Holds INV-LK7.
@pytest.mark.parametrize(("shown_under", "is_followed"), [(8, False), (1, True)])
def test_T33_what_an_older_region_epoch_has_shown_is_for_the_lineage_to_judge(
    shown_under: int, is_followed: bool
) -> None:
    core = LinkCore(region_epoch=RegionEpoch(8), primary_region="primary")
    core.step(LinkStarted())
    core.step(HandshakeDone("primary", RegionEpoch(8), True))
    effects = core.step(HistoryShown(RegionEpoch(shown_under), ("orders-0",)))
    assert (effects == [ReadRegistry()]) is is_followed
    assert (core.refused_history == "") is is_followed


@pytest.mark.parametrize(
    ("mirror", "primary", "same"),
    [
        ((0, 5), (0, 5), True),
        ((0, 5), (1, 5), False),
        ((0, 5), (0, 4), False),
        ((-1, 5), (1, 5), True),
        ((7, 0), (8, 0), True),
    ],
)
def test_T23_a_mirror_agrees_whose_newest_epoch_goes_as_far_at_the_primary(
    mirror: tuple[int, int], primary: tuple[int, int], same: bool
) -> None:
    ours = MirrorLogEnd(LeaderEpoch(mirror[0]), mirror[1])
    theirs = PrimaryLogEnd(LeaderEpoch(primary[0]), primary[1], 0)
    assert agrees(ours, theirs) is same
