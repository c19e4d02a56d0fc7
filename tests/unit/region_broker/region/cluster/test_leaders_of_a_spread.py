"""Leaders of data groups and of the main group over loopback: verdicts asked for, markers written, and what an election makes of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from idempotency.identity import (
    LeaderEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
    TopicPartition,
)
from idempotency.record_batch import iter_headers, read_marker
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.handlers.dispatch.led_apart import AskedBatch, OpenHere, Question
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.ledgers.marker_ends import MarkerEnds
from region_broker.records.batches import Origin
from region_broker.region.cluster import marker_taking, txn_answering
from region_broker.region.cluster.leader_lines import LeaderLines
from region_broker.region.cluster.leader_messages import WriteMarkers, WrittenMarkers, leads_apart
from region_broker.region.cluster.marker_sending import MarkerSending, SendingParts
from region_broker.region.cluster.marker_taking import MarkerTaking, TakingParts
from region_broker.region.cluster.txn_answering import AnsweringParts, TransactionsAnswered
from region_broker.region.cluster.txn_asking import TransactionsAsked
from region_broker.region.peers.node_protocol import LEADING
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from region_broker.region.transaction_desk import TransactionDesk
from tests.fixtures.cluster_images import leader_epoch, member
from tests.fixtures.coordinator import REGION_EPOCH, MemoryIds, MemoryLedger
from tests.fixtures.node_logs import TOPIC_ID, Fixture, all_bytes, batch, fixture
from tests.fixtures.played_spread import (
    MAIN_EPOCH,
    PlayedGroups,
    elected,
    gathered,
    group_epoch,
    partitions_of,
    spread_region,
)
from tests.fixtures.region_nodes import Addresses, NodeSide, real_node, running, standing_of
from tests.fixtures.waiting import until
from txn_coordinator.connection_order import Sender
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.settings import TxnSettings
from txn_coordinator.verdicts import TxnVerdict

OK, LOADING = TxnVerdict.OK, TxnVerdict.LOADING
CLIENT = Sender(0, 5, 5)
ORDERS = TopicImage(topic_id=TOPIC_ID, name="orders", partition_count=3)


def region() -> MetadataImage:
    return replace(spread_region(TOPIC_ID), topics={"orders": ORDERS})


class Always:
    def check_acting(self) -> None:
        """It acts."""


class Node:
    """A node with its logs, its coordinator, and what it says to the other leaders."""

    def __init__(self, node_id: int, addresses: Addresses, image: MetadataImage) -> None:
        self.me = member(node_id)
        self.side: NodeSide = real_node(addresses, standing_of(self.me))
        self.image = image
        self.groups = PlayedGroups(self.me, image)
        self.some: Fixture = fixture(partition_count=3)
        self.acts = True
        self.lines = LeaderLines(self.side.transport._parts)
        self.ends = MarkerEnds()
        self.ledger = MemoryLedger()
        see = self.seen
        self.markers = PartitionMarkerChannel(
            self.some.table, self.some.clock, image=see, on_offsets_marker=lambda *_: None
        )
        self.txn = TransactionCoordinator(
            ledger=self.ledger, markers=self.markers, id_blocks=MemoryIds(), clock=self.some.clock,
            settings=TxnSettings(connection_order=True),
        )  # fmt: skip
        self.asked = TransactionsAsked(see, self.lines, 70 + node_id)
        self.sending = self.markers.apart = MarkerSending(
            SendingParts(me=self.me, image=see, lines=self.lines, note=self.ends.note)
        )
        self.desk = TransactionDesk(self.some.table, self.txn.admin, Always(), self.ends.end_of)
        door = self.side.server.node_door
        assert door is not None
        handlers = door.handlers_for(LEADING)
        TransactionsAnswered(
            AnsweringParts(me=self.me, image=see, acts=lambda: self.acts, clients=self.txn.clients, desk=self.desk)
        ).serve_on(handlers)  # fmt: skip
        MarkerTaking(
            TakingParts(
                image=see, partitions=self.some.table, leads_under=self.groups.leads_under,
                write=self.markers.write_here,
            )
        ).serve_on(handlers)  # fmt: skip

    def seen(self) -> MetadataImage:
        return self.image

    def sees(self, image: MetadataImage) -> None:
        self.image = self.groups.image = image
        self.asked.take_image(image)
        self.sending.take_image(image)

    def markers_in(self, partition: int) -> int:
        data = all_bytes(self.some.partitions[partition])
        return sum(header.is_control for _, header in iter_headers(data))


class Region:
    """Node 1 leads the main group; nodes 2 and 3 lead a partition of `orders` each."""

    tasks: asyncio.TaskGroup

    def __init__(self) -> None:
        addresses: Addresses = {}
        image = region()
        self.one, self.two, self.three = (Node(number, addresses, image) for number in (1, 2, 3))
        (self.at_two,) = partitions_of(image, TOPIC_ID, 1)
        (self.at_three,) = partitions_of(image, TOPIC_ID, 2)
        (self.at_one,) = partitions_of(image, TOPIC_ID, 0)

    def see(self, image: MetadataImage) -> None:
        for node in (self.one, self.two, self.three):
            node.sees(image)

    def tp(self, partition: int) -> TopicPartition:
        return self.one.some.partitions[partition].tp

    async def begun(self, name: str = "t") -> tuple[ProducerId, ProducerEpoch]:
        init = await self.one.txn.clients.init_producer_id(name, 60_000)
        assert init.verdict is OK
        return init.producer_id, init.producer_epoch

    async def joined(self, pair: tuple[ProducerId, ProducerEpoch], *numbers: int) -> None:
        partitions = [self.tp(number) for number in numbers]
        verdict = await self.one.txn.clients.add_partitions("t", *pair, partitions, implicit=False)
        assert verdict is OK

    def question(
        self, pair: tuple[ProducerId, ProducerEpoch], *, adds: bool, partition: int | None = None,
        leader_epoch: LeaderEpoch | None = None, sender: Sender = CLIENT, sequence: int = 0,
    ) -> Question:  # fmt: skip
        number = self.at_two if partition is None else partition
        asked = AskedBatch(
            LogKey(TOPIC_ID, number), leader_epoch or group_epoch(1), SequenceNumber(sequence)
        )
        return Question("t", *pair, adds, sender, (asked,))

    def written(self, node: Node, partition: int, pair: tuple[ProducerId, ProducerEpoch]) -> int:
        """Let a leader have data of a transaction; return where it begins."""
        origin = Origin(*pair, SequenceNumber(0), transactional=True)
        outcome = node.some.partitions[partition].writer.append(batch(1, origin=origin), tv2=True)
        node.some.sync()
        return outcome.base_offset


@asynccontextmanager
async def spread(*, serving: bool = True) -> AsyncIterator[Region]:
    found = Region()
    nodes = (found.one, found.two, found.three)
    sides = [node.side for node in nodes] if serving else [found.three.side]
    async with running(*sides), asyncio.TaskGroup() as tasks:
        found.tasks = tasks
        work = [tasks.create_task(node.lines.run()) for node in nodes]
        work.append(tasks.create_task(found.one.txn.run()))
        await found.one.txn.load(MAIN_EPOCH, REGION_EPOCH)
        try:
            yield found
        finally:
            for task in work:
                task.cancel()


# --- verdicts ------------------------------------------------------------------------------------


async def test_INV_ATA2_a_partition_is_added_durably_before_its_leader_hears_of_it() -> None:
    async with spread() as some:
        pair = await some.begun()
        some.one.ledger.thawed.clear()
        waiting = some.two.asked.verify(some.question(pair, adds=True))
        await until(lambda: bool(some.one.side.server._connections), "it is asked")
        assert isinstance(waiting, asyncio.Future)
        assert not waiting.done()
        some.one.ledger.thawed.set()
        assert await waiting == [OK]
        record = some.one.ledger.records()[-1]
        assert record.partitions == (some.tp(some.at_two),)
        assert await some.two.asked.verify(some.question(pair, adds=True)) == [OK]


async def test_C27_a_TV1_batch_is_in_its_transaction_or_it_is_not() -> None:
    async with spread() as some:
        pair = await some.begun()
        asked = some.question(pair, adds=False)
        assert await some.two.asked.verify(asked) == [TxnVerdict.NOT_IN_TRANSACTION]
        await some.joined(pair, some.at_two)
        assert await some.two.asked.verify(asked) == [OK]
        stranger = (ProducerId(77), ProducerEpoch(0))
        asked = some.question(stranger, adds=False)
        assert await some.two.asked.verify(asked) == [TxnVerdict.UNKNOWN_PRODUCER_MAPPING]


@pytest.mark.parametrize("adds", [True, False])
async def test_INV_ATA4_a_partition_of_very_many_batches_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, adds: bool
) -> None:
    async with spread() as some:
        pair = await some.begun()
        if not adds:
            await some.joined(pair, some.at_two)
        looked = verified = 0
        verify = some.one.txn.clients.verify

        def looking(*asked: Any) -> bool:
            nonlocal looked
            looked += 1
            return leads_apart(*asked)

        def verifying(*asked: Any) -> TxnVerdict:
            nonlocal verified
            verified += 1
            return verify(*asked)

        monkeypatch.setattr(txn_answering, "leads_apart", looking)
        monkeypatch.setattr(some.one.txn.clients, "verify", verifying)
        one = some.question(pair, adds=adds)
        batches = tuple(one.batches[0]._replace(base_sequence=SequenceNumber(at)) for at in range(500))  # fmt: skip
        assert await some.two.asked.verify(one._replace(batches=batches)) == [OK] * 500
        assert looked == 1
        # What adds is judged by partition; each other batch says where it stands in its connection's order.
        assert verified == (2 if adds else 500)


async def test_INV_AVT3_what_was_asked_in_one_turn_is_one_message_in_order() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        sent: list[object] = []
        begin = some.two.lines.begin

        def noted(*args: object) -> None:
            sent.append(args[1])
            begin(*args)  # type: ignore[arg-type]

        some.two.lines.begin = noted  # type: ignore[method-assign, assignment]
        waiting = [
            some.two.asked.verify(some.question(whose, adds=False))
            for whose in (pair, (ProducerId(77), ProducerEpoch(0)), pair)
        ]
        answers = await asyncio.gather(*waiting)
        assert [found[0] for found in answers] == [OK, TxnVerdict.UNKNOWN_PRODUCER_MAPPING, OK]
        assert len(sent) == 1


async def test_INV_TO4_a_late_batch_behind_an_abort_is_refused_once_by_the_order_of_its_own_listener() -> (
    None
):
    async with spread() as some:
        pair = await some.begun()
        clients = some.one.txn.clients
        await some.joined(pair, some.at_two)
        late, fresh = (some.question(pair, adds=False, sequence=number) for number in (0, 7))
        assert await some.two.asked.verify(late) == [OK], "nothing was aborted yet"
        # At the coordinator another listener counts connections: 3 says nothing of the 5 at the leader of the data.
        outcome = await clients.end_txn("t", *pair, commit=False, tv=1, sender=Sender(0, 3, 3))
        assert outcome.verdict is OK
        await settled(some, some.two)
        await some.joined(pair, some.at_two)  # under the same epoch
        unproven = [TxnVerdict.UNPROVEN_CONNECTION]
        assert await some.two.asked.verify(late) == unproven, "nobody repeats it"
        assert await some.two.asked.verify(fresh) == unproven
        assert await some.two.asked.verify(fresh) == [OK], "a live client does"
        newer = some.question(pair, adds=False, sender=Sender(0, 6, 6), sequence=8)
        assert await some.two.asked.verify(newer) == [OK], "made after the abort"


# Holds INV-ALM1.
async def test_INV_ATA1_only_the_leader_of_the_group_is_answered_and_only_by_who_acts() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        asked = some.question(pair, adds=False)
        assert await some.three.asked.verify(asked) == [LOADING], "another node leads it"
        older = some.question(pair, adds=False, leader_epoch=leader_epoch(40))
        assert await some.two.asked.verify(older) == [LOADING], "under another leader epoch"
        some.one.acts = False
        assert await some.two.asked.verify(asked) == [LOADING], "its gate is closed"
        some.one.acts = True
        some.one.image = gathered(some.one.image, 3)
        assert await some.two.asked.verify(asked) == [LOADING], "it knows that another one leads"


async def test_INV_AVT1_a_verdict_of_a_leader_that_is_deposed_meanwhile_counts_no_more() -> None:
    async with spread() as some:
        pair = await some.begun()
        some.one.ledger.thawed.clear()
        waiting = some.two.asked.verify(some.question(pair, adds=True))
        assert isinstance(waiting, asyncio.Future)
        await until(lambda: bool(some.one.ledger.records()[-1].partitions), "it is being added")
        some.two.sees(gathered(some.two.image, 3))
        assert waiting.done(), "INV-AVT2: nobody waits for what cannot count"
        assert waiting.result() == [LOADING]
        some.one.ledger.thawed.set()


async def test_INV_AVT2_without_a_main_leader_the_batch_is_to_be_sent_again() -> None:
    async with spread(serving=False) as some:
        pair = await some.begun()
        assert await some.two.asked.verify(some.question(pair, adds=False)) == [LOADING]
        some.two.sees(gathered(some.two.image))
        assert await some.two.asked.verify(some.question(pair, adds=True)) == [LOADING]


# --- markers -------------------------------------------------------------------------------------


async def settled(some: Region, *nodes: Node) -> None:
    """Let disks and clocks go on until nothing of the transaction is under way."""

    def done() -> bool:
        for node in (some.one, *nodes):
            node.some.sync()
        some.one.some.clock.pass_ms(1_000)
        record = some.one.txn.clients._shards.of("t").view.record_of("t")
        return record is not None and not record.partitions

    await until(done, "the transaction is complete")


async def ended(some: Region, pair: tuple[ProducerId, ProducerEpoch], *, commit: bool = True) -> ProducerEpoch:  # fmt: skip
    outcome = await some.one.txn.clients.end_txn("t", *pair, commit=commit, tv=2)
    assert outcome.verdict is OK
    return outcome.producer_epoch


async def test_INV_AM4_each_marker_is_written_by_who_leads_its_partition() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, 0, 1, 2)
        first = some.written(some.two, some.at_two, pair)
        await ended(some, pair)
        await settled(some, some.two, some.three)
        assert [some.two.markers_in(number) for number in (some.at_two, some.at_three)] == [1, 0]
        assert [some.three.markers_in(number) for number in (some.at_two, some.at_three)] == [0, 1]
        assert [some.one.markers_in(number) for number in range(3)].count(1) == 1
        assert some.one.markers_in(some.at_one) == 1
        end = some.one.ends.end_of(LogKey(TOPIC_ID, some.at_two))
        assert end == first + 2, "INV-AMK2: above the marker"
        assert some.one.ends.end_of(LogKey(TOPIC_ID, some.at_one)) == 0, "it is led here"


# Holds INV-AMT3, INV-AMK3.
async def test_INV_AMT2_a_marker_is_confirmed_only_below_the_high_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marker_taking, "SETTLED_WITHIN_S", 0.05)
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        some.written(some.two, some.at_two, pair)
        led = some.two.some.partitions[some.at_two]
        led.commit_up_to(1)  # no follower has more
        await ended(some, pair)
        for _ in range(3):  # INV-AMT3: it is answered, and comes again
            await asyncio.sleep(0.06)
            some.two.some.sync()
            some.one.some.clock.pass_ms(1_000)
        assert some.two.markers_in(some.at_two) == 0, "nobody sees it"
        assert led.log_end_offset == 2, "T6: written once"
        assert some.one.ends.end_of(led.key) == 0
        led.commit_up_to(2)
        await settled(some, some.two)
        assert some.one.ends.end_of(led.key) == 2


# Holds INV-AMK2.
async def test_INV_AMK1_a_leader_that_is_deposed_as_it_confirms_is_not_believed_and_the_next_one_is_asked() -> (
    None
):
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        some.written(some.two, some.at_two, pair)
        key = LogKey(TOPIC_ID, some.at_two)
        sent: list[WriteMarkers] = []
        begin = some.one.lines.begin

        def caught(to: object, message: WriteMarkers, kind: object, done: Callable[..., None]) -> None:  # fmt: skip
            """Let the election be heard of before the answer."""
            sent.append(message)

            def late(answer: object) -> None:
                if len(sent) == 1:
                    assert isinstance(answer, WrittenMarkers)
                    assert answer.results[0][0][0] == "DONE"
                    some.see(elected(some.one.image, 1, 3, 1))
                    assert some.one.ends.end_of(key) == 0
                done(answer)

            begin(to, message, kind, late)  # type: ignore[arg-type]

        some.one.lines.begin = caught  # type: ignore[method-assign, assignment]
        await ended(some, pair)
        some.written(some.three, some.at_two, pair)  # its copy of the log
        await settled(some, some.two, some.three)
        assert [message.logs[0].leader_epoch for message in sent[:2]] == [
            group_epoch(1),
            group_epoch(1, 1),
        ]
        assert some.three.markers_in(some.at_two) == 1
        assert some.one.ends.end_of(key) == 2, "INV-AMK2: as the next leader confirms it"


async def test_INV_AMK4_who_waits_for_a_leader_that_is_deposed_tries_again_at_once() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        some.two.some.partitions[some.at_two].commit_up_to(0)
        await ended(some, pair)
        await until(lambda: bool(some.one.sending._under_way), "it is under way")
        some.see(elected(some.one.image, 1, None, 1))
        (sent,) = some.one.sending._under_way
        assert len(sent.told) == 1
        some.see(elected(some.one.image, 1, 3, 2))
        await settled(some, some.three)
        assert some.three.markers_in(some.at_two) == 1


async def test_INV_AMT1_a_main_leader_that_was_deposed_has_nothing_written() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        some.two.sees(gathered(some.two.image, 3))
        some.one.ledger.thawed.set()
        await ended(some, pair)
        message = await caught_message(some)
        with pytest.raises(PeerRefused, match="leader epoch"):
            await some.one.lines.call(some.two.me, message, WrittenMarkers)
        some.two.sees(region())
        some.two.groups.closed = True
        answer = await some.one.lines.call(some.two.me, message, WrittenMarkers)
        assert answer.results == ((("RETRY", -1),),), "its group is not open"
        assert some.two.some.partitions[some.at_two].log_end_offset == 0


async def caught_message(some: Region) -> WriteMarkers:
    """Return the message of the marker that is owed, when it is tried again."""
    sent: list[WriteMarkers] = []
    begin = some.one.lines.begin

    def caught(*args: object) -> None:
        sent.append(args[1])  # type: ignore[arg-type]
        begin(*args)  # type: ignore[arg-type]

    some.one.lines.begin = caught  # type: ignore[method-assign, assignment]

    def tried() -> bool:
        some.one.some.clock.pass_ms(1_000)
        return bool(sent)

    await until(tried, "it is tried again")
    return sent[0]


async def test_INV_TP2_a_repeat_whose_answer_was_lost_writes_nothing_and_is_confirmed_with_its_end() -> (
    None
):
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        begin = some.one.lines.begin
        lost: list[object] = []

        def losing(to: object, message: object, kind: object, done: Callable[..., None]) -> None:
            def answered(answer: object) -> None:
                if not lost:
                    lost.append(answer)
                    done(PeerUnreachable("it broke", sent=True))
                else:
                    done(answer)

            begin(to, message, kind, answered)  # type: ignore[arg-type]

        some.one.lines.begin = losing  # type: ignore[method-assign, assignment]
        await ended(some, pair)
        await settled(some, some.two)
        assert len(lost) == 1
        assert some.two.markers_in(some.at_two) == 1
        assert some.one.ends.end_of(LogKey(TOPIC_ID, some.at_two)) == 1


async def test_a_partition_that_has_stopped_is_said_to_have_and_one_without_a_leader_is_tried_again() -> (
    None
):
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two, some.at_three)
        some.two.some.partitions[some.at_two].stop("the disk is gone")
        some.see(elected(some.one.image, 2, None, 1))
        await ended(some, pair)
        shard = some.one.txn.clients._shards.of("t")
        await until(lambda: bool(shard.owed), "it is owed")
        some.see(elected(some.one.image, 2, 3, 2))

        def marked() -> bool:
            some.three.some.sync()
            some.one.some.clock.pass_ms(1_000)
            return some.three.markers_in(some.at_three) == 1

        await until(marked, "the other one is written")


# --- aborts by administrators --------------------------------------------------------------------


async def test_INV_OT3_an_abort_waits_for_the_copy_and_ends_no_later_transaction() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        first = some.written(some.two, some.at_two, pair)
        copy = some.one.some.partitions[some.at_two]
        some.written(some.one, some.at_two, pair)  # copied
        next_epoch = await ended(some, pair)
        await settled(some, some.two)
        await some.joined((pair[0], next_epoch), some.at_one)  # the next transaction is open
        abort = partial(some.one.desk.abort_at, "orders", some.at_two, first)
        waiting = some.tasks.create_task(abort())
        await asyncio.sleep(0)
        assert not waiting.done(), "the copy shows as open what has ended"
        marker = all_bytes(some.two.some.partitions[some.at_two])
        marker = marker[next(at for at, header in iter_headers(marker) if header.is_control) :]
        assert read_marker(marker).producer_id == pair[0]
        copy.become_mirror()
        copy.writer.append_mirrored(marker)
        some.one.some.sync()
        await waiting
        record = some.one.txn.clients._shards.of("t").view.record_of("t")
        assert record is not None
        assert record.partitions == (some.tp(some.at_one),), "it goes on"


# Holds INV-ATA3.
async def test_B13_an_abort_ordered_at_a_data_leader_is_decided_by_the_coordinator() -> None:
    async with spread() as some:
        pair = await some.begun()
        await some.joined(pair, some.at_two)
        first = some.written(some.two, some.at_two, pair)
        some.written(some.one, some.at_two, pair)  # copied
        here = OpenHere(LogKey(TOPIC_ID, some.at_two), group_epoch(1), first, 1)
        waiting = some.tasks.create_task(some.two.asked.abort_producer(*pair, [here]))

        def done() -> bool:
            some.two.some.sync()
            return waiting.done()

        await until(done, "it is answered")
        assert waiting.result() is OK
        assert some.two.markers_in(some.at_two) == 1
        assert await some.three.asked.abort_producer(*pair, [here]) is TxnVerdict.NOT_COORDINATOR
