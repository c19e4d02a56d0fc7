"""When a follower shows readers its copies, and from whom readers are told of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster_image import Leadership, NodeImage, Spread
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.log.failures import CorruptRange
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.reader_places import (
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    ReaderParts,
    RegionReaders,
)
from region_broker.region.cluster.replica_readers import PATIENCE_MS, ReplicaReaders
from tests.fixtures.cluster_images import born, main_domain
from tests.fixtures.node_logs import TOPIC_ID, Fixture, ManualClock, batch, fixture
from tests.fixtures.region_nodes import member
from tests.fixtures.scrubbing import filled, sealed
from tests.fixtures.sealing_keys import keys_in_memory

EPOCH = LeaderEpoch(7)
LEADER, ME, OTHER = member(1), member(2), member(3)
LIFE = UUID(int=99)


class PlayedCopy:
    """A log that notes whether it is shown."""

    def __init__(self, number: int) -> None:
        self.key = LogKey(UUID(int=5), number)
        self.shown: LeaderEpoch | None = None
        self.copy_view = self

    def show(self, leader_epoch: LeaderEpoch) -> None:
        self.shown = leader_epoch

    def hide(self) -> None:
        self.shown = None


class Played:
    """Readers of a follower with two logs."""

    def __init__(self) -> None:
        self.may = True
        self.readers = ReplicaReaders(
            lambda leader, epoch: self.may and (leader, epoch) == (LEADER, EPOCH)
        )
        self.logs = [PlayedCopy(0), PlayedCopy(1)]

    def name(self, number: int) -> None:
        self.readers.named(cast("Partition", self.logs[number]))

    @property
    def shown(self) -> list[LeaderEpoch | None]:
        return [log.shown for log in self.logs]

    def serve(self) -> None:
        """Let a session be as far as it gets."""
        self.readers.begin(LEADER, EPOCH)
        self.readers.heard(0, acts=True)
        self.name(0)
        self.name(1)
        assert self.shown == [EPOCH, EPOCH]


def test_INV_RRD1_a_copy_is_shown_once_an_answer_of_the_session_has_named_it() -> None:
    played = Played()
    played.readers.begin(LEADER, EPOCH)
    played.name(0)
    assert played.shown == [None, None]
    played.readers.heard(0, acts=True)
    assert played.shown == [EPOCH, None]
    played.name(1)
    assert played.shown == [EPOCH, EPOCH]
    assert played.readers.named_count == 2
    played.readers.gone(cast("Partition", played.logs[0]))
    assert played.shown == [None, EPOCH]


ENDS: dict[str, Callable[[Played], None]] = {
    "the region takes no writes": lambda played: played.readers.heard(1, acts=False),
    "the session ends": lambda played: played.readers.end(),
    "another session begins": lambda played: played.readers.begin(LEADER, EPOCH),
    "the leader is silent": lambda played: played.readers.look(PATIENCE_MS + 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_INV_RRD2_nothing_is_shown_once_one_reason_is_gone(end: str) -> None:
    played = Played()
    played.serve()
    ENDS[end](played)
    assert played.shown == [None, None]
    assert not played.readers.is_open


def test_INV_RRD2_nothing_is_shown_once_the_metadata_say_otherwise() -> None:
    played = Played()
    played.serve()
    played.may = False
    played.readers.look(1)
    assert played.shown == [None, None]
    played.may = True
    played.readers.look(2)
    assert played.shown == [EPOCH, EPOCH]


def test_INV_RRD3_what_another_session_has_named_is_not_shown_in_this_one() -> None:
    played = Played()
    played.serve()
    played.readers.end()
    played.readers.begin(LEADER, EPOCH)
    played.readers.heard(5, acts=True)
    assert played.readers.is_open
    assert played.shown == [None, None]
    played.name(1)
    assert played.shown == [None, EPOCH]


# --- whom the metadata name ------------------------------------------------------------------------


def node(me: Member, rack: str, *, fenced: bool = False, draining: bool = False) -> NodeImage:
    return NodeImage(
        node_id=me.node_id, incarnation=me.incarnation, life=LIFE, kafka_host="h", kafka_port=1, peer_host="h", peer_port=2,
        http_host="h", http_port=3, rack=rack, fenced=fenced, draining=draining,
    )  # fmt: skip


def image(*nodes: NodeImage, in_sync: tuple[Member, ...] = (LEADER, ME, OTHER), acting: str = "eu") -> MetadataImage:  # fmt: skip
    leadership = Leadership(leader=LEADER, leader_epoch=EPOCH, in_sync=in_sync, version=3)
    domain = msgspec.structs.replace(main_domain(), acting_region=acting)
    return msgspec.structs.replace(
        born(), nodes={each.node_id: each for each in nodes}, leadership=leadership, domains={DEFAULT_DOMAIN: domain},
    )  # fmt: skip


def readers_of(
    me: Member,
    held: MetadataImage,
    serving: frozenset[Member] = frozenset(),
    *,
    is_open: bool = False,
    partitions: PartitionTable | None = None,
    clock: Clock | None = None,
) -> RegionReaders:
    return RegionReaders(
        ReaderParts(
            partitions=cast("Any", partitions), clock=clock or ManualClock(),
            region="eu", me=me, life=LIFE, image=lambda: held, serving=lambda: serving, is_open=lambda: is_open, is_deleted_elsewhere=lambda _key, _offset: False)
    )  # fmt: skip


def test_INV_RPR1_readers_are_sent_to_those_who_are_in_sync_heard_and_have_said_that_they_serve() -> (
    None
):
    all_three = (node(LEADER, "a"), node(ME, "b"), node(OTHER, "b"))
    both = frozenset({ME, OTHER})
    assert readers_of(LEADER, image(*all_three), both).nearer("b") == (2, 3)
    assert readers_of(LEADER, image(*all_three), both).nearer("c") == ()
    assert readers_of(LEADER, image(*all_three), frozenset({OTHER})).nearer("b") == (3,)
    assert readers_of(LEADER, image(*all_three, in_sync=(LEADER, OTHER)), both).nearer("b") == (3,)
    one_fenced = (node(LEADER, "a"), node(ME, "b", fenced=True), node(OTHER, "b"))
    assert readers_of(LEADER, image(*one_fenced), both).nearer("b") == (3,)
    one_drains = (node(LEADER, "a"), node(ME, "b", draining=True), node(OTHER, "b"))
    assert readers_of(LEADER, image(*one_drains), both).nearer("b") == (3,)
    same_rack = (node(LEADER, "b"), node(ME, "b"), node(OTHER, "b"))
    assert readers_of(LEADER, image(*same_rack), both).nearer("b") == ()


def test_INV_RPR3_while_leaders_are_spread_no_follower_serves_readers_and_nobody_is_sent_to_one() -> (
    None
):
    held = image(node(LEADER, "a"), node(ME, "b"), node(OTHER, "b"))
    spread = msgspec.structs.replace(held, spread=Spread(groups={}, preferred=(1,), topics=()))
    both = frozenset({ME, OTHER})
    assert readers_of(LEADER, held, both).nearer("b") == (2, 3)
    assert readers_of(LEADER, spread, both).nearer("b") == ()
    assert readers_of(ME, held).may_serve(LEADER, EPOCH)
    assert not readers_of(ME, spread).may_serve(LEADER, EPOCH)


def test_INV_RPR2_a_follower_serves_by_its_own_metadata() -> None:
    nodes = (node(LEADER, "a"), node(ME, "b"))
    found = readers_of(ME, image(*nodes), is_open=True)
    assert found.may_serve(LEADER, EPOCH)
    assert found.serves("b")
    assert not found.serves("a")
    assert not found.may_serve(OTHER, EPOCH)
    assert not found.may_serve(LEADER, LeaderEpoch(EPOCH + 1))
    assert not readers_of(ME, image(*nodes, in_sync=(LEADER,))).may_serve(LEADER, EPOCH)
    assert not readers_of(ME, image(*nodes, acting="us")).may_serve(LEADER, EPOCH)
    for changed in (node(ME, "b", fenced=True), node(ME, "b", draining=True)):
        assert not readers_of(ME, image(nodes[0], changed)).may_serve(LEADER, EPOCH)
    other_life = msgspec.structs.replace(nodes[1], life=UUID(int=1))
    assert not readers_of(ME, image(nodes[0], other_life)).may_serve(LEADER, EPOCH)


def with_damage() -> tuple[Fixture, Path, ManualClock, RegionReaders]:
    """Return a log with a flipped bit in its first batch, the file, a clock, and readers that have met it."""
    some, clock = filled(), ManualClock()
    [path, *_] = sealed(some)
    some.disk.damage(path, 200)
    held = image(node(LEADER, "a"), node(ME, "b"))
    found = readers_of(ME, held, is_open=True, partitions=some.table, clock=clock)
    with pytest.raises(CorruptRange):
        some.partition.reader.read_raw(0, 1)
    assert found.may_serve(LEADER, EPOCH)
    found.stop_serving(some.partition.key, 0, "orders-0")
    found.stop_serving(some.partition.key, 7, "orders-0")
    assert not found.may_serve(LEADER, EPOCH)
    return some, path, clock, found


async def test_INV_HRD4_INV_RPR4_a_follower_with_damage_serves_nobody_until_it_is_mended() -> None:
    some, path, _, found = with_damage()
    await found.look()
    assert not found.may_serve(LEADER, EPOCH)
    some.disk.damage(path, 200)  # the bit is flipped back
    found.is_damaged = lambda key: key == some.partition.key
    await found.look()
    assert not found.may_serve(LEADER, EPOCH), "another place of it is not mended"
    found.is_damaged = lambda _: False
    await found.look()
    assert found.may_serve(LEADER, EPOCH)


async def test_INV_HRD4_a_follower_without_the_key_serves_nobody_until_it_has_it() -> None:
    sealing = keys_in_memory()
    some, clock = fixture({"tidemark.encryption": "secret"}, sealing=sealing), ManualClock()
    some.partition.writer.append(batch())
    some.sync()
    sealing.keys.use({})
    held = image(node(LEADER, "a"), node(ME, "b"))
    found = readers_of(ME, held, is_open=True, partitions=some.table, clock=clock)
    found.stop_serving(some.partition.key, 0, "orders-0")
    await found.look()
    assert not found.may_serve(LEADER, EPOCH)
    sealing.keys.use(keys_in_memory().keys.named)
    await found.look()
    assert found.may_serve(LEADER, EPOCH)


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
async def test_INV_RPR4_what_is_gone_is_no_damage(gone: str) -> None:
    some, _, _, found = with_damage()
    if gone == "deleted":
        some.table.drop_topic(TOPIC_ID)
    else:
        some.partition.log.trimmer.start_at(100)
        some.partition.commit_up_to(100)
    await found.look()
    assert found.may_serve(LEADER, EPOCH)


async def test_INV_RPR4_a_log_that_has_stopped_is_not_sound() -> None:
    some, path, _, found = with_damage()
    some.disk.damage(path, 200)
    some.partition.stop("its disk has failed")
    await found.look()
    assert not found.may_serve(LEADER, EPOCH)


async def test_INV_RPR4_it_looks_less_and_less_often() -> None:
    some, path, clock, found = with_damage()
    looks = found._due_ms - clock.now_ms
    await found.look()
    again = found._due_ms - clock.now_ms
    assert (looks, again) == (PAUSE_MS_MIN, 2 * PAUSE_MS_MIN)
    some.disk.damage(path, 200)
    await found.look()
    assert found.may_serve(LEADER, EPOCH)
    found.stop_serving(some.partition.key, 0, "orders-0")
    assert found._due_ms - clock.now_ms == 4 * PAUSE_MS_MIN
    for _ in range(20):
        found._put_off()
    assert found._due_ms - clock.now_ms == PAUSE_MS_MAX
