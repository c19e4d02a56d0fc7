"""Rules T33 to T35: a region proves its history to whoever has shown it; what was shown is not taken back."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from geo_replicator.effects import Diverged
from geo_replicator.failover import Phase
from geo_replicator.failover_events import PromiseGiven
from geo_replicator.history import HeldLog, HistoryDifference, LastBatch, ShownLog, difference_of
from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.link.core import LinkState
from geo_replicator.link.topic_changes import TopicChanges
from geo_replicator.ports import LinkFailed
from geo_replicator.topology import MirrorTopic
from geo_replicator.whole_ends import WholeEnds
from idempotency.identity import LeaderEpoch, RegionEpoch, Round
from region_broker.controller import metadata_commands, metadata_image
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import QUORUM_FOLDER, MetadataStore
from region_broker.region.failover.log_surgery import key_of
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.peers.history_messages import AskHistory
from region_broker.region.peers.protocol import Frame, PeerRefused
from region_broker.region.peers.sessions import Handling, PeerSession
from region_broker.region.ports import Term
from region_broker.region.role import RegionRole
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.fixtures.failover_regions import ORDERS, Pair, Site, fail_over
from tests.fixtures.older_metadata import forget_deletions
from tests.fixtures.waiting import until

LOG = LogKey(UUID(int=1), 0)
FIRST, SECOND = 8 << 16 | 1, 8 << 16 | 2


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as running:
        yield running


def shown(*, end: int = 100, last: LastBatch | None = None, whole_from: int = 0) -> ShownLog:
    """A log of which a mirror has shown [0, 90)."""
    return ShownLog(LOG, 90, end, last or LastBatch(LeaderEpoch(FIRST), 80, 7), whole_from)


# Holds INV-HI1.
@pytest.mark.parametrize(
    ("held", "agreed_end"),
    [
        (None, 0),
        (HeldLog(0, 60, LastBatch(LeaderEpoch(FIRST), 50, 3), epoch_end=60), 60),
        (HeldLog(0, 60, None, epoch_end=60, readable=False), 60),
        (HeldLog(0, 99, LastBatch(LeaderEpoch(SECOND), 80, 7), epoch_end=40), 40),
        (HeldLog(0, 99, LastBatch(LeaderEpoch(FIRST), 80, 8), epoch_end=99), 80),
        (HeldLog(0, 99, None, epoch_end=99), 90),
    ],
    ids=[
        "no log",
        "shorter",
        "shorter and not readable",
        "written again by a later life",
        "other bytes",
        "other batch borders",
    ],
)
def test_T33_a_log_that_does_not_hold_what_was_shown_differs(
    held: HeldLog | None, agreed_end: int
) -> None:
    difference = difference_of(shown(), held)
    assert difference is not None
    assert (difference.agreed_end, difference.shown_end, difference.copied_end) == (
        agreed_end,
        90,
        100,
    )


# Holds INV-HI2.
@pytest.mark.parametrize(
    ("log", "held"),
    [
        (shown(), HeldLog(0, 90, LastBatch(LeaderEpoch(FIRST), 80, 7), epoch_end=90)),
        (shown(), HeldLog(95, 99, None)),
        (shown(), HeldLog(0, 99, LastBatch(LeaderEpoch(FIRST), 70, 1), whole_from=90)),
        (shown(whole_from=85), HeldLog(0, 99, LastBatch(LeaderEpoch(FIRST), 70, 1))),
        (shown(), HeldLog(0, 99, None, readable=False)),
        (ShownLog(LOG, 90, 50), HeldLog(0, 99, LastBatch(LeaderEpoch(FIRST), 80, 7))),
        (ShownLog(LOG, 0, 0), None),
    ],
    ids=["same", "deleted by retention", "cleaned here", "cleaned there", "does not answer", "bytes lost there",
         "nothing shown"],
)  # fmt: skip
def test_T33_what_cannot_be_compared_is_no_difference(log: ShownLog, held: HeldLog | None) -> None:
    assert difference_of(log, held) is None


async def older_copy(pair: Pair) -> None:
    """The primary holds "kept" only, from an older copy; the mirror has shown "gone", too."""
    copy = await pair.copied_with("kept")
    await pair.eu.write("gone")
    await pair.reached("gone")
    await pair.eu.kill()
    copy.restore()


def openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each region that opens its writes."""
    opened: list[str] = []
    open_gate = RegionRole.open_gate

    def noting(role: RegionRole) -> None:
        opened.append(role.region)
        open_gate(role)

    monkeypatch.setattr(RegionRole, "open_gate", noting)
    return opened


async def test_T33_primary_with_an_older_folder_asks_before_it_takes_a_write(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await older_copy(pair)
    opened = openings(monkeypatch)
    await pair.eu.start()
    await pair.eu.until(Phase.DISPUTED)
    assert opened == [], "not for a moment"
    assert not pair.eu.role.acting
    assert b"gone" in pair.us.values()
    await pair.eu.kill()
    await pair.eu.start()
    assert pair.eu.driver.state.phase is Phase.DISPUTED, "a restart opens nothing"
    await until(lambda: "failover --to us" in pair.eu.role.reason_not_acting, "the choice is named")
    assert ORDERS in pair.eu.role.reason_not_acting
    with pytest.raises(OperationRefused, match="accept-loss"):
        pair.eu.operations.begin_failover(confirmed=True)
    await fail_over(pair.us)
    await pair.us.write("later")
    await pair.eu.until(Phase.MIRRORING)
    await pair.eu.shows("later")
    assert b"gone" in pair.eu.values()


async def test_T33_writes_close_whenever_a_mirror_comes_that_has_shown_more(pair: Pair) -> None:
    await older_copy(pair)
    await pair.us.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    for value in ("other", "another"):
        await pair.eu.write(value)
    await pair.us.start()
    await pair.eu.until(Phase.DISPUTED)
    assert not pair.eu.role.acting
    link = pair.us.link
    await until(lambda: "accept-loss" in link.core.refused_history, "the mirror says why")
    assert b"gone" in pair.us.values()
    assert b"other" not in pair.us.raw()
    assert not pair.us.quarantine.tails()


async def test_INV_DP1_a_mirror_whose_answer_was_lost_is_asked_again_before_writes_open(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await older_copy(pair)
    opened = openings(monkeypatch)
    lost: list[Frame] = []
    read = pair.us.server._handlers._requests[AskHistory.__name__]

    def first_lost(frame: Frame, hand_back: Callable[[], None]) -> Handling[PeerSession]:
        if not lost:
            lost.append(frame)
            raise PeerRefused("lost", "the connection broke")
        return read(frame, hand_back)

    monkeypatch.setitem(pair.us.server._handlers._requests, AskHistory.__name__, first_lost)
    # The mirror's own link would tell it, too, and sometimes before it asks.
    await pair.eu.start(listens=False)
    await pair.eu.until(Phase.DISPUTED)
    assert (len(lost), opened) == (1, []), "not for a moment"


LACKS = HistoryDifference(LOG, 90, 100, 60, "it is shorter here")


def hear_refutation(site: Site) -> None:
    epoch = site.driver.state.region_epoch
    site.driver.refuted("us", TidemarkPoint(epoch, 1_000), [LACKS])


async def test_INV_DP5_writes_close_in_the_very_call_that_hears_of_a_refutation(pair: Pair) -> None:
    hear_refutation(pair.eu)
    assert not pair.eu.role.acting, "before anything is awaited"
    assert "has shown" in pair.eu.role.reason_not_acting
    await pair.eu.until(Phase.DISPUTED)


async def test_INV_FS3_what_is_refuted_while_it_loads_opens_no_writes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.kill()
    opened = openings(monkeypatch)
    loads = RegionRole.act

    async def refuted_at_the_end(role: RegionRole, term: Term, **how: Any) -> None:
        await loads(role, term, **how)
        hear_refutation(pair.eu)

    monkeypatch.setattr(RegionRole, "act", refuted_at_the_end)
    await pair.eu.start()
    await pair.eu.until(Phase.DISPUTED)
    assert opened == []


# Holds INV-DP2.
async def test_T33_a_loss_is_accepted_by_name_and_the_mirrors_tail_goes_to_quarantine(
    pair: Pair,
) -> None:
    await older_copy(pair)
    await pair.us.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    with pytest.raises(OperationRefused, match="no loss to accept"):
        pair.eu.operations.begin_accept_loss(confirmed=True)
    for value in ("other", "another"):
        await pair.eu.write(value)
    await pair.us.start()
    await pair.eu.until(Phase.DISPUTED)
    with pytest.raises(OperationRefused, match="confirm"):
        pair.eu.operations.begin_accept_loss(confirmed=False)
    stated = await pair.eu.operations.loss_to_accept()
    assert (stated.from_region, stated.to_region) == ("us", "eu")
    assert [(r.topic, r.partition, r.first_offset, r.last_offset) for r in stated.plain] == [
        (ORDERS, 0, 1, 1)
    ]
    operation = await pair.eu.ended(pair.eu.operations.begin_accept_loss(confirmed=True))
    assert operation.status == "succeeded", (operation.error, operation.steps)
    assert operation.region_epoch == 16
    await pair.us.until(Phase.MIRRORING)
    await pair.us.shows("another")
    assert b"gone" not in pair.us.values()
    kept = b"".join(
        chunk
        for tail in pair.us.quarantine.tails()
        if tail.topic == ORDERS
        for chunk in pair.us.quarantine.chunks(tail)
    )
    assert b"gone" in kept
    (losses,) = await pair.us.operations.losses()
    assert losses.plain_record_count == 1
    assert not losses.unexplained


async def test_T35_nothing_below_what_was_shown_is_cut_for_a_divergence(pair: Pair) -> None:
    for value in ("first", "second"):
        await pair.eu.write(value)
    await pair.reached("second")
    log = pair.us.partition()
    assert log.log_end_offset == 2
    below = Diverged(key_of(log), log.log.epochs.latest, 1, 2)
    with pytest.raises(LinkFailed, match="new lineage entry only"):
        await pair.us.diverged.diverged([below])
    assert log.log_end_offset == 2
    assert not pair.us.quarantine.tails()


# Holds INV-LD5.
async def test_T16_a_claim_does_not_outlive_its_bytes(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    before = pair.us.tidemarks.claim().point
    await pair.eu.write("second", number=1)
    await pair.reached("second")
    folder = pair.us.table.folder_of(pair.us.partition(1).topic_id, 1)
    await pair.eu.kill()
    await pair.us.kill()
    shutil.rmtree(folder)
    await pair.us.start()
    await pair.us.until(Phase.MIRRORING)
    await until(lambda: pair.us.tidemarks.link is not None, "the link is open")
    link = pair.us.link
    assert link.reaching.stored > before, "what was shown stays known"
    assert before <= pair.us.tidemarks.claim().point < link.reaching.stored
    assert "the disk has lost a part of it" in link.reaching.lost
    operation = await pair.us.ended(pair.us.operations.begin_failover(confirmed=True))
    assert operation.status == "succeeded", operation.error
    assert operation.statement is not None
    assert "shown here" in operation.statement.open_bound
    base = pair.us.metadata.image.main_domain.lineage[-1].positions
    for log in pair.us.table:
        assert log.log_end_offset >= base.get(key_of(log).encode(), 0), log.tp


async def test_T16_a_region_that_had_promised_and_lost_a_log_takes_over_and_acts(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.write("second", number=1)
    await pair.reached("second")
    shown = pair.us.tidemarks.claim().point
    folder = pair.us.table.folder_of(pair.us.partition(1).topic_id, 1)
    await pair.eu.kill()
    await pair.us.driver.record(PromiseGiven(RegionEpoch(16), "eu"))
    await pair.us.kill()
    shutil.rmtree(folder)
    await pair.us.start()
    assert pair.us.driver.state.phase is Phase.FENCED
    operation = await pair.us.ended(pair.us.operations.begin_failover(confirmed=True))
    assert operation.status == "succeeded", operation.error
    assert operation.statement is not None
    assert f"{shown} was reached and shown here" in operation.statement.open_bound
    await pair.us.kill()
    await pair.us.start()
    await pair.us.until(Phase.ACTING)
    assert b"first" in pair.us.values()


async def test_T16_primary_sends_again_what_a_mirror_has_lost(pair: Pair) -> None:
    await pair.eu.write("first", number=1)
    await pair.reached("first")
    folder = pair.us.table.folder_of(pair.us.partition(1).topic_id, 1)
    await pair.us.kill()
    shutil.rmtree(folder)
    await pair.us.start()
    await pair.us.shows("first")
    assert pair.eu.role.acting
    link = pair.us.link
    await until(lambda: pair.us.tidemarks.claim().point >= link.reaching.stored, "claimed again")
    assert not link.reaching.lost


async def made_again(pair: Pair) -> tuple[UUID, UUID]:
    """The primary has deleted ORDERS with a record that was shown, and made it again; return both topic ids."""
    await pair.eu.write("of the old one")
    await pair.reached("of the old one")
    await pair.stop_tidemarks()
    old = pair.eu.partition().topic_id
    await pair.eu.topics.delete_topic(ORDERS)
    new = await pair.eu.topics.create_topic(ORDERS, 2, {})
    await pair.eu.write("of the new one")
    await pair.copied(new.topic_id, 1)
    return old, new.topic_id


# Holds INV-TH2.
async def test_T15_a_topic_that_was_made_again_is_two_until_a_tidemark_is_past_the_deletion(
    pair: Pair,
) -> None:
    old, new = await made_again(pair)
    assert b"of the old one" in pair.us.values()
    assert list(pair.us.topics.image.topics).count(ORDERS) == 1
    assert not any(new.hex in name for name in pair.us.topics.image.topics)
    pair.eu.ledger.answers.set()
    await pair.us.shows("of the new one")
    await until(lambda: pair.us.table.by_id(old, 0) is None, "the old one goes")
    await until(lambda: pair.us.metadata.image.topics[ORDERS].topic_id == new, "it has its name")
    assert str(pair.us.partition().tp.topic) == ORDERS
    await pair.us.kill()
    await pair.us.start()
    await pair.us.shows("of the new one")


async def test_T15_a_topic_gets_its_name_though_the_old_one_goes_while_it_is_made(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("of the old one")
    await pair.reached("of the old one")
    old = pair.eu.partition().topic_id
    deleting, creating = asyncio.Event(), asyncio.Event()
    apply = MetadataStore.apply

    async def in_this_order(store: MetadataStore, command: Command) -> MetadataImage:
        if store is pair.us.metadata and isinstance(command, metadata_commands.DeleteTopic):
            deleting.set()
            await creating.wait()
        if store is pair.us.metadata and isinstance(command, metadata_commands.CreateTopic):
            creating.set()
            await until(lambda: pair.us.table.by_id(old, 0) is None, "the old one goes")
        return await apply(store, command)

    monkeypatch.setattr(MetadataStore, "apply", in_this_order)
    await pair.eu.topics.delete_topic(ORDERS)
    async with asyncio.timeout(20):
        await deleting.wait()
    new = (await pair.eu.topics.create_topic(ORDERS, 2, {})).topic_id
    await until(lambda: pair.us.table.by_id(new, 0) is not None, "the new one is there")
    await until(lambda: ORDERS in pair.us.metadata.image.topics, "it has its name")
    assert pair.us.metadata.image.topics[ORDERS].topic_id == new


async def test_T15_a_takeover_before_that_tidemark_has_the_old_topic_again(pair: Pair) -> None:
    old, new = await made_again(pair)
    await pair.eu.kill()
    await fail_over(pair.us)
    assert pair.us.metadata.image.topics[ORDERS].topic_id == old
    assert pair.us.metadata.image.topic_by_id(new) is None
    assert b"of the old one" in pair.us.raw()
    (tail,) = [tail for tail in pair.us.quarantine.tails() if tail.topic_id == new]
    assert b"of the new one" in b"".join(pair.us.quarantine.chunks(tail))


async def test_INV_TG1_a_topic_that_lost_its_name_goes_although_the_candidate_is_killed_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, new = await made_again(pair)
    await pair.eu.kill()
    deleted, killed = asyncio.Event(), asyncio.Event()
    apply = MetadataStore.apply

    async def killed_behind_the_deletion(store: MetadataStore, command: Command) -> MetadataImage:
        image = await apply(store, command)
        if isinstance(command, metadata_commands.DeleteTopic):
            deleted.set()
            await killed.wait()
            raise asyncio.CancelledError  # nothing of a process goes on that is killed
        return image

    folder = pair.us.table.folder_of(new, 0).parent
    with monkeypatch.context() as patched:
        patched.setattr(MetadataStore, "apply", killed_behind_the_deletion)
        pair.us.operations.begin_failover(confirmed=True)
        async with asyncio.timeout(20):
            await deleted.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pair.us.kill())
            killed.set()
    assert folder.exists()
    await pair.us.start()
    await pair.us.until(Phase.ACTING)
    assert not folder.exists(), "the start has finished the deletion"


async def kept_by_the_mirror(pair: Pair) -> None:
    """Return once the mirror says that it keeps what the primary lacks."""

    def says_so() -> bool:
        link = pair.us.tidemarks.link
        return link is not None and "absence is no deletion" in link.core.refused_history

    await until(says_so, "the mirror keeps its topic, and says why")


async def test_T34_a_deletion_by_an_older_version_does_not_close_the_writes(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.topics.delete_topic(ORDERS)
    await pair.eu.kill()
    forget_deletions(pair.eu.folder / "metadata.db")
    await pair.us.start()
    await pair.eu.start()
    await until(lambda: pair.eu.role.acting or pair.eu.driver.state.refuted is not None, "decided")
    assert pair.eu.role.acting, pair.eu.role.reason_not_acting
    await kept_by_the_mirror(pair)
    assert pair.eu.role.acting


# Holds INV-HI3, INV-LK4.
@pytest.mark.parametrize("upgraded", [False, True], ids=["", "upgraded before"])
async def test_T34_a_topic_that_the_primary_merely_lacks_is_kept_and_closes_the_writes(
    pair: Pair, *, upgraded: bool
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    if upgraded:
        forget_deletions(pair.eu.folder / "metadata.db")
    database, copy = pair.eu.folder / "metadata.db", pair.eu.folder / "metadata.copy"
    log, copied_log = pair.eu.folder / QUORUM_FOLDER, pair.eu.folder / "quorum.copy"
    shutil.copy(database, copy)
    if log.exists():
        shutil.copytree(log, copied_log)
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    await pair.stop_tidemarks()
    second = await pair.eu.topics.create_topic("second", 1, {})
    await pair.eu.write("precious", topic="second")
    await pair.copied(second.topic_id, 1)
    await pair.eu.kill()
    for side in ("metadata.db-wal", "metadata.db-shm"):
        (pair.eu.folder / side).unlink(missing_ok=True)
    shutil.copy(copy, database)
    shutil.rmtree(log)
    if copied_log.exists():
        shutil.copytree(copied_log, log)
    await pair.eu.start()
    await pair.eu.until(Phase.DISPUTED)
    await kept_by_the_mirror(pair)
    held = pair.us.table.by_id(second.topic_id, 0)
    assert held is not None
    assert held.log_end_offset == 1


async def test_T34_a_deletion_that_the_primary_may_have_forgotten_does_not_close_its_writes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be told is no difference: a mirror was away, and its topic's deletion is one of too many since."""
    for module in (metadata_commands, metadata_image):
        monkeypatch.setattr(module, "DELETED_MAX", 2)
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.topics.delete_topic(ORDERS)
    for name in ("a", "b"):
        await pair.eu.topics.create_topic(name, 1, {})
        await pair.eu.topics.delete_topic(name)
    await pair.us.start()
    await kept_by_the_mirror(pair)
    assert pair.eu.role.acting
    await pair.us.kill()
    await pair.eu.kill()
    await pair.us.start()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)


# Holds INV-TH3.
def test_T15_a_shrink_that_waits_is_given_up_when_the_primary_has_the_partitions_again() -> None:
    two, four = MirrorTopic(LOG.topic_id, ORDERS, 2), MirrorTopic(LOG.topic_id, ORDERS, 4)
    changes = TopicChanges()
    changes.shrink((two,), 5)
    changes.follow((two,))
    assert [drop.keeps for drop in changes.due(5)] == [2]
    changes.follow((four,))
    assert changes.due(9) == ()


# Holds INV-LD1.
async def test_T16_nothing_is_shown_before_the_fact_that_it_was_reached_is_durable(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    asked, go = asyncio.Event(), asyncio.Event()
    save = ReachedFile.save

    async def held(store: ReachedFile, point: TidemarkPoint, whole: WholeEnds) -> None:
        asked.set()
        await go.wait()
        await save(store, point, whole)

    monkeypatch.setattr(ReachedFile, "save", held)
    await pair.eu.write("second")
    await asked.wait()
    assert b"second" in pair.us.raw()
    assert b"second" not in pair.us.values()
    go.set()
    await pair.us.shows("second")


async def test_T23_no_log_counts_for_a_tidemark_once_its_session_has_ended(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    link = pair.us.link
    await until(lambda: link.core.state is LinkState.PAUSED, "the session has ended")
    floor = link.reaching.book.floor
    assert floor is not None
    log = key_of(pair.us.partition())
    reached, newest = link.reaching.frontier.complete, floor.newest
    following = replace(
        newest, number=newest.number + 1, round=Round(newest.round + 1), full=False,
        moved={log: floor.positions[log]._replace(cut_offset=1)}, removed=(), ledger={},
    )  # fmt: skip
    link.reaching.frontier.observe(following)
    assert link.reaching.frontier.complete == reached
    link.reaching.frontier.reconciled([log], following.region_epoch)
    assert link.reaching.frontier.complete == following.point
