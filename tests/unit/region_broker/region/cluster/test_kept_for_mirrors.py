"""What an order has deleted, and the leader keeps for mirrors, its followers keep, too, and they delete what it does not keep (INV-RFN8, INV-RFN9, INV-RH1, T14)."""

from functools import partial

import msgspec
import pytest

from idempotency.identity import LogKey
from idempotency.pieces import drained
from idempotency.record_batch import Buffer
from region_broker.partitions.trimming import Hold
from region_broker.region.cluster import replica_line, replica_sending
from region_broker.region.cluster.replica_messages import ReplicaPart
from region_broker.region.cluster.replica_sending import FetchSession
from tests.fixtures.node_logs import batch
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live

CONFIGS = {"segment.bytes": "4096", "retention.ms": "-1"}
ORDERED = 100
NEEDED = Hold(offset=10, ordered_offset=10)
"""A mirror has copied ten records."""


def maintain(node: ReplicaNode, hold: Hold | None = None) -> None:
    drained(node.table.upkeep.maintain(lambda _: hold))


def fill(node: ReplicaNode) -> None:
    """Leave less room on a node's disk than its watermark."""
    node.table.room.free_bytes_min = 100
    node.table.room.note(1_000, 50)
    assert node.table.room.refusal is not None


def kept(*nodes: ReplicaNode) -> list[int]:
    return [node.partition().kept_from for node in nodes]


async def with_an_order(region: ReplicaRegion) -> tuple[ReplicaNode, ReplicaNode, ReplicaNode]:
    """Return three nodes whose logs begin at `ORDERED` for readers, and have full segments below it."""
    one, two, three = await region.start(topic_configs=CONFIGS)
    for _ in range(60):
        await one.produce(batch(2, size_bytes=200))
    retention = one.partition().retention
    await retention.delete_records(ORDERED)
    await retention.wait_deleted(ORDERED)
    return one, two, three


def test_INV_RFN8_T14_what_the_leader_keeps_for_a_mirror_is_there_whoever_leads_next() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await with_an_order(region)
        maintain(one, NEEDED)
        for node in (two, three):
            maintain(node)
        assert kept(one, two, three) == [0, 0, 0]
        region.elect(2)
        await two.produce(batch())
        for node in (one, three):
            maintain(node)
        maintain(two, NEEDED)
        assert kept(one, two, three) == [0, 0, 0]
        assert bytes_of(one.partition()) == bytes_of(two.partition()) == bytes_of(three.partition())

        maintain(two)  # the mirror has all of it
        assert 0 < two.partition().kept_from <= ORDERED
        told = [node.partition().trimming for node in (one, three)]
        await region.until(
            lambda: all(each.leader_keeps_from == two.partition().kept_from for each in told),
            "it is told, though nothing is written and no start has moved",
        )
        for node in (one, three):
            maintain(node)
        assert kept(one, three) == [two.partition().kept_from] * 2

    live(life)


def test_INV_RFN8_nothing_goes_before_a_leader_has_said_what_it_keeps() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await with_an_order(region)
        maintain(one)
        gone = one.partition().kept_from
        assert gone > 0
        await one.kill()
        await three.kill()
        await three.start()
        assert three.partition().log_start_offset == ORDERED
        maintain(three)
        assert kept(three) == [0], "who leads is not heard"
        region.fence(1)
        region.elect(2)
        await region.until(lambda: three.following.is_connected, "it follows")
        await two.produce(batch())
        maintain(three)
        assert kept(two, three) == [0, 0]

    live(life)


def test_INV_RFN8_a_leader_that_does_not_tell_holds_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = FetchSession._take

    def older(
        session: FetchSession, key: LogKey, bytes_max: int, batches_max: int, *, wait: bool
    ) -> tuple[ReplicaPart, Buffer, int] | None:
        taken = take(session, key, bytes_max, batches_max, wait=wait)
        if taken is None:
            return None
        fields = msgspec.msgpack.decode(msgspec.msgpack.encode(taken[0]))
        before = ReplicaPart.__struct_fields__.index("kept_from")
        return msgspec.convert(fields[:before], ReplicaPart), *taken[1:]

    monkeypatch.setattr(FetchSession, "_take", older)

    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await with_an_order(region)
        assert two.partition().trimming.leader_keeps_from is None
        maintain(two)
        assert 0 < two.partition().kept_from <= ORDERED
        assert kept(one) == [0]

    live(life)


def test_INV_RFN8_who_follows_no_more_keeps_what_it_has_until_it_leads() -> None:
    async def life(region: ReplicaRegion) -> None:
        _, two, three = await with_an_order(region)
        two.following.stop()  # who leads next is not known, and cuts may come first
        maintain(two)
        assert kept(two) == [0]
        region.elect(2)
        await two.produce(batch())
        assert two.partition().trimming.leader_keeps_from is None
        maintain(two)
        assert 0 < two.partition().kept_from <= ORDERED
        await region.until(
            lambda: three.partition().trimming.leader_keeps_from == two.partition().kept_from,
            "another one that follows is told",
        )

    live(life)


def test_INV_RFN8_a_follower_without_room_hears_what_it_may_delete() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await with_an_order(region)
        fill(two)
        maintain(one)
        await one.produce(batch())
        await region.until(
            lambda: two.partition().trimming.leader_keeps_from == one.partition().kept_from,
            "it is told, and takes nothing else",
        )
        maintain(two)
        assert kept(two) == kept(one)

    live(life)


def test_INV_RFN8_what_goes_below_a_start_is_told_to_who_copies_from_here() -> None:
    """As at the main leader of a region that mirrors: its log is idle, and its start moved long before its bytes go."""

    async def life(region: ReplicaRegion) -> None:
        _, two, _ = await with_an_order(region)
        two.partition().trimming.leader_keeps_from = None
        told: list[int] = []
        two.partition().watchers.add(lambda: told.append(two.partition().kept_from))
        maintain(two)
        assert told
        assert told[-1] == two.partition().kept_from > 0

    live(life)


def test_INV_RFN9_followers_without_room_delete_what_their_leader_deletes_and_are_in_sync_again() -> (
    None
):
    """The start moves while their disks are full: of two such followers neither makes room otherwise, and HW stands still."""

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs=CONFIGS)
        for _ in range(60):
            await one.produce(batch(2, size_bytes=200))
        for node in (two, three):
            fill(node)
        one.append(batch())
        await region.until(lambda: region.in_sync() == {1}, "they take nothing")
        assert await one.partition().retention.delete_records(ORDERED) == ORDERED
        maintain(one)
        for node in (two, three):
            await region.until(
                lambda node=node: node.partition().log_start_offset == ORDERED,  # type: ignore[misc]
                "it hears of the start",
            )
            await node.table.noted_starts.keep()
            maintain(node)
        assert 0 < kept(one)[0] <= ORDERED
        assert kept(two, three) == kept(one) * 2
        for node in (two, three):
            node.table.room.note(1_000, 200)
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "they have room, and copy on")
        assert bytes_of(two.partition()) == bytes_of(three.partition()) == bytes_of(one.partition())

    live(life)


@pytest.mark.parametrize("checked_at_once", [2, 1_000])
def test_INV_RFN9_a_follower_without_room_hears_of_all_its_logs_however_few_an_answer_has(
    monkeypatch: pytest.MonkeyPatch, checked_at_once: int
) -> None:
    """Paced, and with a lot to send, an answer has two logs, and the next session begins with the same ones."""
    monkeypatch.setattr(replica_sending, "LOGS_AT_ONCE", 1)
    monkeypatch.setattr(replica_line, "LOGS_CHECKED_AT_ONCE", checked_at_once)
    numbers = range(5)

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs=CONFIGS)
        for number in numbers:
            for _ in range(60):
                await one.produce(batch(2, size_bytes=200), number)
        for node in (two, three):
            fill(node)
        for number in numbers:
            one.append(batch(), number)
        await region.until(lambda: region.in_sync() == {1}, "they take nothing")
        for number in numbers:
            assert await one.partition(number).retention.delete_records(ORDERED) == ORDERED
        maintain(one)
        kept = {number: one.partition(number).kept_from for number in numbers}
        assert min(kept.values()) > 0

        def freed(node: ReplicaNode) -> bool:
            maintain(node)
            return {number: node.partition(number).kept_from for number in numbers} == kept

        for node in (two, three):
            await region.until(partial(freed, node), "each log has gone where the leader's has")
            node.table.room.note(1_000, 200)
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "they have room, and copy on")
        for number in numbers:
            assert bytes_of(two.partition(number)) == bytes_of(one.partition(number))

    live(life, partitions=len(numbers))


def test_INV_RFN9_T14_a_follower_without_room_voids_no_order() -> None:
    """Only what is told by a session that goes on voids one."""

    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await with_an_order(region)
        fill(two)
        two.partition().retention.forget_below(ORDERED + 4)
        await one.produce(batch())
        await region.until(
            lambda: not two.following.is_connected, "it has heard an answer, and ended the session"
        )
        assert two.partition().log_start_offset == ORDERED + 4

    live(life)
