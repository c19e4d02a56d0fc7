"""What a member that follows may say, and what it does to nobody else (INV-RMS, INV-RLD, INV-RSN5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey
from region_broker.region.cluster.replica_messages import (
    NOT_LEADING,
    OTHER_LEADER_EPOCH,
    OUT_OF_RANGE,
    UNKNOWN_FOLLOWER,
    AskedLog,
    CheckedReplicaLogs,
    CheckReplicaLogs,
    DurableReport,
    FoundLog,
    LogPlace,
    ReplicaFetch,
    ReplicaFetched,
    starts_of,
)
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import LOGS_MAX, PeerMessage, PeerRefused, PeerUnreachable
from tests.fixtures.cluster_images import let_in, member
from tests.fixtures.node_logs import TOPIC_ID, batch
from tests.fixtures.region_nodes import standing_of
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion
from tests.simulation.simulated_loop import run_simulated

FOREIGN = UUID(int=99)


@asynccontextmanager
async def leader_and_stranger(
    node_id: int = 3,
) -> AsyncIterator[tuple[ReplicaRegion, ReplicaNode, NodeClient]]:
    """A leader with one honest follower, and a connection of a registered member that is neither."""
    async with asyncio.TaskGroup() as tasks:
        region = ReplicaRegion(tasks)
        one, two = await region.start(2)
        region.change(*let_in(3))
        client = await NodeClient.connect(region.fabric.site("n3"), region.addresses[one.member])
        reading = tasks.create_task(client.run())
        await client.handshake(standing_of(member(node_id)), REPLICA)
        yield region, one, client
        client.close()
        reading.cancel()
        await one.produce(batch())
        assert two.partition().commits.durable_end == one.partition().high_watermark
        for node in (one, two):
            await node.kill()


def fetch(
    leader_epoch: int, *positions: LogPlace, durable: tuple[LogPlace, ...] = ()
) -> ReplicaFetch:
    return ReplicaFetch(
        leader_epoch=LeaderEpoch(leader_epoch), positions=positions, durable_ends=durable, bytes_max=1 << 20, wait_ms_max=0
    )  # fmt: skip


async def refusal(client: NodeClient, message: PeerMessage) -> str:
    """Return the code with which a question is refused, "" where it is not."""
    try:
        await client.begin(
            message, ReplicaFetched if isinstance(message, ReplicaFetch) else CheckedReplicaLogs
        )
    except PeerRefused as refused:
        return refused.code
    return ""


def test_INV_RLD1_INV_RLD3_INV_RMS2_another_leader_epoch_is_refused_and_deposes_nobody() -> None:
    async def main() -> None:
        async with leader_and_stranger() as (region, one, client):
            epoch = region.leadership.leader_epoch
            for wrong in (NO_LEADER_EPOCH, epoch - 1, epoch + 1, 2**61):
                assert await refusal(client, fetch(wrong)) == OTHER_LEADER_EPOCH
                client.notify(DurableReport(leader_epoch=LeaderEpoch(wrong), durable_ends=()))
            await one.produce(batch())

    run_simulated(main(), 1)


def test_INV_RLD1_who_is_not_registered_is_refused() -> None:
    async def main() -> None:
        async with leader_and_stranger(node_id=4) as (region, _, client):
            assert await refusal(client, fetch(region.leadership.leader_epoch)) == UNKNOWN_FOLLOWER

    run_simulated(main(), 1)


def test_INV_RLD1_who_waits_while_the_leader_ends_is_refused() -> None:
    async def main() -> None:
        async with leader_and_stranger() as (region, one, client):
            waiting = client.begin(
                ReplicaFetch(leader_epoch=region.leadership.leader_epoch, bytes_max=1, wait_ms_max=2_000), ReplicaFetched
            )  # fmt: skip
            await region.clock.sleep_ms(20)
            leadership = region.leadership
            one.leading.end()
            with pytest.raises(PeerRefused) as refused:
                await waiting
            assert refused.value.code == NOT_LEADING
            one.leading.begin(leadership)

    run_simulated(main(), 1)


def test_positions_out_of_range_are_refused_and_foreign_logs_are_not_kept() -> None:
    async def main() -> None:
        async with leader_and_stranger() as (region, one, client):
            epoch = region.leadership.leader_epoch
            await one.produce(batch(3))
            assert (
                await refusal(client, fetch(epoch, LogPlace(TOPIC_ID, 0, 10**12))) == OUT_OF_RANGE
            )
            foreign = [LogPlace(FOREIGN, number, 5) for number in range(1_000)]
            assert await refusal(client, fetch(epoch, *foreign, LogPlace(TOPIC_ID, 0, 0))) == ""
            term = one.leading._term
            assert term is not None
            kept = [following.positions for following in term._followers.values()]
            assert all(key.topic_id == TOPIC_ID for positions in kept for key in positions), (
                "INV-RSN5"
            )
            asked = (AskedLog(FOREIGN, 0, epoch), AskedLog(TOPIC_ID, 0, epoch))
            answer = await client.call(
                CheckReplicaLogs(leader_epoch=epoch, logs=asked), CheckedReplicaLogs
            )
            assert answer.logs == (
                FoundLog(TOPIC_ID, 0, epoch, epoch, 3, 0, held_to=3, drops=(0, 0)),
            )

    run_simulated(main(), 1)


def test_who_says_that_it_has_more_than_there_is_moves_hw_no_further_than_the_leaders_disk() -> (
    None
):
    async def main() -> None:
        async with leader_and_stranger() as (region, one, client):
            epoch = region.leadership.leader_epoch
            lie = (LogPlace(TOPIC_ID, 0, 2**61),)
            assert await refusal(client, fetch(epoch, durable=lie)) == ""
            one.runner.goes.clear()
            one.append(batch())
            client.notify(DurableReport(leader_epoch=epoch, durable_ends=lie))
            await region.clock.sleep_ms(100)
            assert one.partition().high_watermark == 0
            one.runner.goes.set()

    run_simulated(main(), 1)


@pytest.mark.parametrize(
    "wrong",
    [
        DurableReport(leader_epoch=LeaderEpoch(1), durable_ends=(LogPlace(TOPIC_ID, 0, -1),)),
        DurableReport(leader_epoch=LeaderEpoch(-2), durable_ends=()),
        fetch(1, LogPlace(TOPIC_ID, 0, 2**62)),
        fetch(1, LogPlace(TOPIC_ID, -1, 0)),
        fetch(1, *[LogPlace(FOREIGN, 0, 0)] * (LOGS_MAX + 1)),
        CheckReplicaLogs(
            leader_epoch=LeaderEpoch(1), logs=(AskedLog(TOPIC_ID, 0, LeaderEpoch(-2)),)
        ),
    ],
    ids=[
        "a negative end",
        "no leader epoch",
        "a position too large",
        "no partition",
        "too many names",
        "asked for none",
    ],
)
def test_INV_RMS1_what_cannot_be_so_ends_its_connection(wrong: PeerMessage) -> None:
    async def main() -> None:
        async with leader_and_stranger() as (region, _, client):
            if isinstance(wrong, DurableReport):
                client.notify(wrong)
            else:
                with pytest.raises(PeerUnreachable):
                    await client.begin(wrong, ReplicaFetched)
            await region.until(lambda: client.ended is not None, "it ends")

    run_simulated(main(), 1)


def test_who_names_logs_and_goes_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with leader_and_stranger() as (region, one, client):
            epoch = region.leadership.leader_epoch
            assert await refusal(client, fetch(epoch, LogPlace(TOPIC_ID, 0, 0))) == ""
            term = one.leading._term
            assert term is not None
            assert len(term._followers) == 2
            client.close()
            await region.until(lambda: len(term._followers) == 1, "it is forgotten")
            (sessions,) = term.copying._sessions.values()
            assert len(sessions) == 1

    run_simulated(main(), 1)


def test_a_version_that_does_not_tell_where_its_logs_start_is_understood_both_ways() -> None:
    class OldReport(PeerMessage, frozen=True, kw_only=True):
        leader_epoch: LeaderEpoch
        durable_ends: tuple[LogPlace, ...]

    place = (LogPlace(TOPIC_ID, 0, 7),)
    old = OldReport(leader_epoch=LeaderEpoch(1), durable_ends=place)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=DurableReport)
    assert read == DurableReport(leader_epoch=LeaderEpoch(1), durable_ends=place)
    assert starts_of(read) is None
    new = msgspec.structs.replace(read, log_starts=place)
    assert starts_of(new) == {LogKey(TOPIC_ID, 0): 7}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=OldReport) == old
