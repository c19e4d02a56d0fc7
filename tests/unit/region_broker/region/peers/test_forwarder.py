"""Forwarding over loopback: verbatim both ways, in order, and failures that do not lie (INV-FW1..4)."""

import asyncio
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from idempotency.identity import RegionEpoch
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.peers import forwarder as forwarding
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.forwarder import ForwardTarget, PeerForwarder
from region_broker.region.peers.protocol import (
    ASK_AGAIN,
    PEER_FRAME_BYTES_MAX,
    Forward,
    FrameKind,
    Hello,
    PeerRefused,
    encode_frame,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply
from region_broker.security.identity import ANONYMOUS, Identity
from region_broker.wire.closing_lines import LINES_MAX
from region_broker.wire.codec.gathered import LARGE_PART_BYTES, GatheredAnswer, gathered
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.memory_budget import Share
from region_broker.wire.server import CloseConnection
from tests.fixtures.linked_regions import PlayedIdentity
from tests.fixtures.waiting import until

PRODUCE, JOIN, END_TXN = 0, 11, 26
LARGE_BYTES = 32 << 20


@dataclass
class Acting:
    """The primary region as the target sees it."""

    acting: bool = True
    region_epoch: RegionEpoch = RegionEpoch(8)
    reason_not_acting: str = ""


@dataclass
class Answers:
    """A dispatcher that answers with the frame turned round, and notes who asked."""

    seen: list[tuple[int, str, int]] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    hangs: asyncio.Event | None = None
    handed_back: list[weakref.ref[memoryview]] = field(default_factory=list)
    """What requests that hang were in, and handed back: JoinGroup."""

    async def answer(self, incoming: Incoming) -> bytes | None:
        self.peers.append(incoming.peer)
        self.seen.append(
            (incoming.peer.connection_id, incoming.peer.address, incoming.correlation_id)
        )
        if incoming.api_key == JOIN:
            self.handed_back.append(weakref.ref(incoming.frame))
            incoming.hand_back()
        if self.hangs is not None:
            await self.hangs.wait()
        if incoming.api_key == PRODUCE:
            return None
        if incoming.version == 97:
            raise AssertionError("a rule is broken")
        if incoming.version == 98:
            raise RuntimeError("handler bug")
        if incoming.version == 99:
            raise CloseConnection("version 99 is not served")
        return bytes(incoming.frame)[::-1]


def request(correlation_id: int, *, key: int = END_TXN, version: int = 3) -> memoryview:
    return memoryview(struct.pack(">hhi", key, version, correlation_id) + b"rest")


def context(
    connection_id: int, state: ConnectionState, newest: int = 0, *, key: int = END_TXN
) -> RequestContext:
    return RequestContext(
        services=None,  # type: ignore[arg-type]
        connection_id=connection_id,
        api_key=key,
        version=3,
        correlation_id=0,
        peer=f"client-{connection_id}",
        connection_state=state,
        newest_connection_id=newest,
    )


@dataclass
class Fixture:
    """A mirror's forwarder, and the primary region's side."""

    forwarder: PeerForwarder
    server: PeerServer
    answers: Answers
    acting: Acting
    mirror: PlayedIdentity
    primary: PlayedIdentity


@asynccontextmanager
async def fixture(acting: Acting | None = None) -> AsyncIterator[Fixture]:
    network, mirror, answers = AsyncioNetwork(), PlayedIdentity("mirror"), Answers()
    acting, primary = acting or Acting(), PlayedIdentity("primary")
    server = PeerServer(network, primary)
    ForwardTarget(answers, acting).register(server)
    listener = await server.start("127.0.0.1", 0)
    address = ("127.0.0.1", listener.port)
    forwarder = PeerForwarder(
        network, mirror, RegionAddresses({"primary": [address]}), SystemClock(), origin=7
    )
    running = asyncio.get_running_loop().create_task(forwarder.run())
    await asyncio.sleep(0)
    yield Fixture(forwarder, server, answers, acting, mirror, primary)
    running.cancel()
    await asyncio.wait([running])
    server.close()
    await server.wait_closed()


async def test_requests_go_and_answers_come_verbatim_and_in_order() -> None:
    async with fixture() as made:
        state = ConnectionState()
        frames = [request(number) for number in range(20)]
        answers = await asyncio.gather(
            *(made.forwarder.forward(context(1, state), frame) for frame in frames)
        )
        assert answers == [bytes(frame)[::-1] for frame in frames]
        assert [correlation_id for _, _, correlation_id in made.answers.seen] == list(range(20))
        assert {(number, peer) for number, peer, _ in made.answers.seen} == {
            (made.answers.seen[0][0], "client-1")
        }


async def test_each_client_connection_is_a_connection_of_its_own_there() -> None:
    async with fixture() as made:
        for number in (1, 2):
            await made.forwarder.forward(context(number, ConnectionState()), request(number))
        first, second = made.answers.seen
        assert first[0] < second[0]
        assert (first[1], second[1]) == ("client-1", "client-2")


async def test_KAFKA_17754_connections_keep_their_order_and_each_channel_counts() -> None:
    """The fence compares numbers: a channel opened anew for the same client is newer than the old one."""
    async with fixture() as made:
        state = ConnectionState()
        await made.forwarder.forward(context(2, ConnectionState(), newest=5), request(1))
        await made.forwarder.forward(context(1, state, newest=5), request(2))
        made.forwarder._channels[state].close()
        await made.forwarder.forward(context(1, state, newest=6), request(3))
        later, earlier, reopened = made.answers.peers
        assert earlier.connection_id < reopened.connection_id < later.connection_id
        assert {peer.numbering.origin for peer in made.answers.peers} == {7}
        assert later.numbering is reopened.numbering
        # Everything that the mirror had accepted by then is at most the newest.
        assert later.connection_id < later.numbering.newest
        assert later.numbering.newest >> 20 == 6
        await made.forwarder.forward(context(3, ConnectionState(), newest=4), request(4))
        assert later.numbering.newest >> 20 == 6, "what is told late takes nothing back"


async def test_no_answer_is_passed_on_where_none_is_due() -> None:
    async with fixture() as made:
        assert (
            await made.forwarder.forward(context(1, ConnectionState()), request(1, key=PRODUCE))
            is None
        )


async def test_a_request_that_can_only_be_answered_by_closing_closes_the_client() -> None:
    async with fixture() as made:
        with pytest.raises(CloseConnection, match="version 99"):
            await made.forwarder.forward(context(1, ConnectionState()), request(1, version=99))


async def test_INV_FW5_a_bug_in_a_handler_ends_the_client_and_not_the_acting_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fixture() as made:
        with pytest.raises(CloseConnection, match="failed at the request"):
            await made.forwarder.forward(context(1, ConnectionState()), request(5, version=98))
        other = await made.forwarder.forward(context(2, ConnectionState()), request(6))
        assert other == bytes(request(6))[::-1]
    (line,) = [record for record in caplog.records if record.exc_info]
    assert "handler bug" in caplog.text
    # The client's own address and number, as the mirror's log names them.
    assert (line.client, line.correlation_id, line.api) == ("client-1", 5, "EndTxn")  # type: ignore[attr-defined]


# Holds INV-FW3.
async def test_a_region_that_does_not_act_executes_nothing() -> None:
    async with fixture() as made:
        made.acting.acting, made.acting.reason_not_acting = False, "it is draining"
        with pytest.raises(ForwardingFailed, match="it is draining") as failed:
            await made.forwarder.forward(context(1, ConnectionState()), request(1))
        assert not failed.value.may_have_happened
        assert made.answers.seen == []


# Holds INV-FW3.
async def test_a_request_of_an_older_region_epoch_is_not_executed() -> None:
    async with fixture() as made:
        state = ConnectionState()
        await made.forwarder.forward(context(1, state), request(1))
        made.acting.region_epoch = RegionEpoch(17)
        with pytest.raises(ForwardingFailed, match="the domain is at 17") as failed:
            await made.forwarder.forward(context(1, state), request(2))
        assert not failed.value.may_have_happened
        assert len(made.answers.seen) == 1


class OpensOnce(Acting):
    """Does not act when the first request is looked at, and acts from then on."""

    @property
    def acting(self) -> bool:
        first, self.looked_at = not getattr(self, "looked_at", False), True
        return not first

    @acting.setter
    def acting(self, acting: bool) -> None:
        assert acting


async def test_INV_FW4_what_follows_a_refused_produce_is_refused_though_writes_have_opened() -> (
    None
):
    async with fixture(OpensOnce()) as made:
        state = ConnectionState()
        forwarded = [
            made.forwarder.forward(context(1, state), request(number, key=PRODUCE))
            for number in (1, 2)
        ]
        outcomes = await asyncio.gather(*forwarded, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ForwardingFailed] * 2
        assert made.answers.seen == []
        await made.forwarder.forward(context(2, ConnectionState()), request(1, key=PRODUCE))
        assert len(made.answers.seen) == 1


async def test_INV_FW4_what_follows_a_produce_that_was_not_admitted_is_not_executed() -> None:
    async with fixture() as made:
        asked: list[Hello] = []

        def admit(
            hello: Hello,
        ) -> None:  # another start of the mirror was heard, for a moment (T36)
            asked.append(hello)
            if len(asked) == 1:
                raise PeerRefused(ASK_AGAIN, "another start was heard")

        made.server.admit = admit
        state = ConnectionState()
        forwarded = [
            made.forwarder.forward(context(1, state), request(number, key=PRODUCE))
            for number in (1, 2)
        ]
        outcomes = await asyncio.gather(*forwarded, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ForwardingFailed] * 2
        assert made.answers.seen == []
        await until(lambda: ended(made.forwarder, state), what="its connection is over")
        assert await made.forwarder.forward(context(1, state), request(3)) is not None


def ended(forwarder: PeerForwarder, state: ConnectionState) -> bool:
    client = forwarder._channels[state].client
    return client is not None and client.ended is not None


async def test_INV_FW4_no_produce_leaves_on_a_new_connection_behind_one_that_failed_on_the_old() -> (
    None
):
    async with fixture() as made:
        state = ConnectionState()
        made.answers.hangs = asyncio.Event()

        async def first() -> None:
            with pytest.raises(ForwardingFailed):
                await made.forwarder.forward(context(1, state), request(1, key=PRODUCE))
            state.produce_broken = True  # as the dispatcher does

        failing = asyncio.get_running_loop().create_task(first())
        await until(lambda: len(made.answers.seen) == 1, what="the first is under way")
        made.mirror.region_epoch = made.acting.region_epoch = RegionEpoch(17)
        with pytest.raises(ForwardingFailed, match="ahead of this one") as failed:
            await made.forwarder.forward(context(1, state), request(2, key=PRODUCE))
        assert not failed.value.may_have_happened
        await failing
        assert len(made.answers.seen) == 1
        made.answers.hangs.set()


async def test_INV_FW4_produce_of_a_client_goes_over_one_connection_and_other_requests_go_on() -> (
    None
):
    """A batch that waited for the next connection would be judged though the one before it was refused on the last."""
    async with fixture() as made:
        state = ConnectionState()
        ours = context(1, state, key=PRODUCE)
        assert await made.forwarder.forward(ours, request(1, key=PRODUCE)) is None
        assert await made.forwarder.forward(ours, request(2, key=PRODUCE)) is None
        made.forwarder.follow("primary", RegionEpoch(9))  # the connection ends, and is opened again
        await made.forwarder.forward(context(1, state), request(3))
        with pytest.raises(ForwardingFailed, match="has ended: reconnect") as failed:
            await made.forwarder.forward(ours, request(4, key=PRODUCE))
        assert not failed.value.may_have_happened
        assert [correlation_id for _, _, correlation_id in made.answers.seen] == [1, 2, 3]
        again = context(2, ConnectionState(), key=PRODUCE)
        assert await made.forwarder.forward(again, request(5, key=PRODUCE)) is None


# Holds INV-FW2.
async def test_what_was_sent_and_not_answered_may_have_happened() -> None:
    async with fixture() as made:
        made.answers.hangs = asyncio.Event()
        forwarding = asyncio.get_running_loop().create_task(
            made.forwarder.forward(context(1, ConnectionState()), request(1))
        )
        await until(lambda: len(made.answers.seen) == 1, what="it is executed")
        made.server.close()
        with pytest.raises(ForwardingFailed) as failed:
            await forwarding
        assert failed.value.may_have_happened
        made.answers.hangs.set()


# Holds INV-FW2.
async def test_what_is_not_answered_in_time_may_have_happened_and_its_connection_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "FORWARD_TIMEOUT_S", 0.01)
    async with fixture() as made:
        made.answers.hangs, state = asyncio.Event(), ConnectionState()
        with pytest.raises(ForwardingFailed, match="did not answer within") as failed:
            await made.forwarder.forward(context(1, state), request(1))
        assert failed.value.may_have_happened
        assert made.forwarder._channels[state].client is None
        made.answers.hangs.set()


@pytest.mark.parametrize(("elsewhere", "later"), [(True, True), (True, False), (False, True)])
async def test_INV_FW6_what_waits_for_a_region_that_acts_no_more_ends_and_may_have_happened(
    *, elsewhere: bool, later: bool
) -> None:
    async with fixture() as made:
        made.answers.hangs = asyncio.Event()
        forwarding = asyncio.get_running_loop().create_task(
            made.forwarder.forward(context(1, ConnectionState()), request(1))
        )
        await until(lambda: len(made.answers.seen) == 1, what="it is executed")
        acting, epoch = made.mirror.acting_region, made.mirror.region_epoch
        made.forwarder.follow(acting, RegionEpoch(epoch))
        assert not forwarding.done()
        made.forwarder.follow("another" if elsewhere else acting, RegionEpoch(epoch + later))
        with pytest.raises(ForwardingFailed) as failed:
            async with asyncio.timeout(30):
                await forwarding
        assert failed.value.may_have_happened
        made.answers.hangs.set()


# Holds INV-FW2.
async def test_what_could_not_be_sent_has_not_happened() -> None:
    async with fixture() as made:
        made.server.close()
        await made.server.wait_closed()
        with pytest.raises(ForwardingFailed) as failed:
            await made.forwarder.forward(context(1, ConnectionState()), request(1))
        assert not failed.value.may_have_happened


async def test_INV_SID1_whom_a_request_is_from_goes_with_it_wherever_it_is_executed() -> None:
    proved = Identity("User:alice", "192.0.2.7", "SCRAM-SHA-256", token_id="t1")
    async with fixture() as made:
        for identity in (ANONYMOUS, proved):
            ctx = context(1, ConnectionState(identity=identity))
            ctx.peer = "192.0.2.7:4711"
            await made.forwarder.forward(ctx, request(1))
            found = made.answers.peers[-1].state.identity
            assert found == structs.replace(identity, host="192.0.2.7")


def message(origin: int, region_epoch: int = 8) -> Forward:
    return Forward(
        region_epoch=RegionEpoch(region_epoch), client_origin=origin, client_connection_id=1,
        newest_connection_id=1, channel=1, principal="", client_address="client-1",
    )  # fmt: skip


def session() -> PeerSession:
    return PeerSession(1, "mirror:1", PlayedIdentity("mirror").hello())


async def test_INV_HMN3_a_client_of_another_region_meets_no_node_of_this_one() -> None:
    """Its region tells it where to go on: our addresses are of listeners that it did not come by."""
    async with fixture() as made:
        await made.forwarder.forward(context(1, ConnectionState()), request(17))
        (peer,) = made.answers.peers
        assert peer.state.met_at == {}


async def test_INV_SID1_each_request_is_from_whom_it_says_and_nobody_stays_somebody() -> None:
    asked, answers = session(), Answers()
    target = ForwardTarget(answers, Acting())
    principals = []
    for said in ("User:alice", "", "User:bob"):
        await target._forward(asked, structs.replace(message(7), principal=said), request(1))
        principals.append(answers.peers[-1].state.identity.principal)
    assert principals == ["User:alice", ANONYMOUS.principal, "User:bob"]


async def test_INV_HPT1_what_nobody_waits_for_is_given_up_with_the_connection_that_forwarded_it() -> (
    None
):
    given_up: list[str] = []

    class Asking:
        def give_up(self) -> None:
            given_up.append("it")

    asked, answers = session(), Answers()
    await ForwardTarget(answers, Acting())._forward(asked, message(7), request(1))
    answers.peers[-1].waiting[Asking()] = None
    assert given_up == []
    asked.end()
    assert given_up == ["it"]


async def test_INV_WGA1_what_a_log_was_read_for_goes_to_the_other_region_as_it_lies() -> None:
    large = bytes(LARGE_PART_BYTES)

    class Much(Answers):
        async def answer(self, incoming: Incoming) -> Any:
            return gathered([b"front", large, b"end"])

    reply = await ForwardTarget(Much(), Acting())._forward(session(), message(7), request(1))
    assert isinstance(reply, Reply)
    assert [*reply.attachment] == [b"front", large, b"end"]
    assert reply.attachment[1] is large


async def test_INV_FW5_a_rule_that_is_broken_ends_the_acting_node() -> None:
    target = ForwardTarget(Answers(), Acting())
    with pytest.raises(AssertionError, match="a rule is broken"):
        await target._forward(session(), message(7), request(1, version=97))


@pytest.mark.parametrize("more_bytes", [0, 1])
async def test_INV_FW9_an_answer_that_no_frame_holds_ends_its_client_and_not_the_acting_node(
    more_bytes: int,
) -> None:
    """Answers to clients may have 200 MiB, frames between nodes 128: ListGroups is as long as names that clients gave to groups."""
    piece = bytes(1 << 20)
    count, rest = divmod(PEER_FRAME_BYTES_MAX - 64 * 1024 + more_bytes, len(piece))
    whole = GatheredAnswer([piece] * count + [piece[:rest]])

    class Long(Answers):
        async def answer(self, incoming: Incoming) -> Any:
            return whole

    target = ForwardTarget(Long(), Acting())
    if more_bytes:
        with pytest.raises(PeerRefused, match="ask for less") as refused:
            await target._forward(session(), message(7), request(1))
        assert refused.value.code == "close-connection"
        return
    reply = await target._forward(session(), message(7), request(1))
    assert isinstance(reply, Reply)
    assert encode_frame(FrameKind.ANSWER, 1, reply.message, reply.attachment)


# Holds INV-FW3.
async def test_a_request_of_a_region_epoch_that_is_not_known_here_yet_is_not_executed() -> None:
    answers = Answers()
    with pytest.raises(PeerRefused, match="this region is behind"):
        await ForwardTarget(answers, Acting())._forward(session(), message(7, 17), request(1))
    assert answers.seen == []


async def test_the_lives_of_nodes_that_forwarded_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "_ORIGINS_MAX", 2)
    target = ForwardTarget(Answers(), Acting())
    for origin in (1, 2, 3):
        await target._forward(session(), message(origin), request(1))
    assert list(target._numberings) == [2, 3]


# Holds INV-FW3.
async def test_a_region_that_does_not_act_itself_is_forwarded_nothing() -> None:
    async with fixture() as made:
        made.primary.acting_region = "another"
        with pytest.raises(ForwardingFailed, match="primary does not act") as failed:
            await made.forwarder.forward(context(1, ConnectionState()), request(1))
        assert not failed.value.may_have_happened
        assert made.answers.seen == []


# Holds INV-FW3.
@pytest.mark.parametrize("acting_region", ["", "mirror"])
async def test_nobody_else_acts(acting_region: str) -> None:
    async with fixture() as made:
        made.mirror.acting_region = acting_region
        with pytest.raises(ForwardingFailed, match="no other region") as failed:
            await made.forwarder.forward(context(1, ConnectionState()), request(1))
        assert not failed.value.may_have_happened


async def test_a_client_connection_that_ends_takes_its_peer_connection_along() -> None:
    async with fixture() as made:
        state = ConnectionState()
        await made.forwarder.forward(context(1, state), request(1))
        connections = made.server._connections
        assert len(connections) == 1
        state.end()
        await until(lambda: not connections, what="the peer connection is closed")


@pytest.mark.parametrize("version", [98, 99])
async def test_INV_WCL1_a_flood_of_forwarded_requests_that_end_their_clients_is_few_lines(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may send 64 Produce requests without acks at once that are all refused."""
    async with fixture() as made:
        frames = (request(number, version=version) for number in range(4 * LINES_MAX))
        state = ConnectionState()
        await asyncio.gather(
            *(made.forwarder.forward(context(1, state), frame) for frame in frames),
            return_exceptions=True,
        )
    told = [each for each in caplog.records if each.name == forwarding.__name__]
    # Twice as many where they come in two seconds.
    assert 0 < len(told) <= 2 * LINES_MAX + 1


async def test_INV_PS10_what_waits_at_the_acting_node_holds_nothing_of_its_peer_port() -> None:
    """1. A client of a mirror joins a group, with 32 MiB of tagged fields. 2. It waits for others as long as it says: minutes, or days."""
    async with fixture() as made, asyncio.TaskGroup() as tasks:
        made.answers.hangs = asyncio.Event()
        large = memoryview(bytes(request(1, key=JOIN)) + bytes(LARGE_BYTES))
        joins = [
            tasks.create_task(made.forwarder.forward(context(number, ConnectionState()), large))
            for number in range(3)
        ]
        await until(lambda: len(made.answers.handed_back) == 3, "they wait")
        await until(lambda: made.server.memory.held_bytes == 0, "nothing counts")
        assert [kept() for kept in made.answers.handed_back] == [None] * 3
        assert not any(join.done() for join in joins)
        made.answers.hangs.set()


async def test_INV_WQ4_a_request_has_left_when_the_other_side_takes_it() -> None:
    """Until then it is in the stream, or waits for its turn: whoever forwards counts it."""
    async with fixture() as made, asyncio.TaskGroup() as tasks:
        filler, state = Share(), ConnectionState()
        left: list[int] = []
        await made.forwarder.forward(context(1, state), request(1))
        made.server.memory.hold(filler, made.server.memory.left_bytes)
        made.server.memory.may_read(filler, 0, unfinished=True)  # it has the turn
        large = memoryview(bytes(request(2)) + bytes(LARGE_BYTES))
        for number in range(2):
            sent = partial(left.append, number)
            tasks.create_task(made.forwarder.forward(context(1, state), large, sent))
        await until(lambda: made.server.memory.held_bytes > made.server.settings.memory_bytes)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert left == []
        made.server.memory.hold(filler, 0)
        await until(lambda: left == [0, 1])


async def test_INV_FW6_what_the_other_side_does_not_take_waits_for_it_no_more_once_it_acts_no_more() -> (
    None
):
    async with fixture() as made, asyncio.TaskGroup() as tasks:
        filler, state = Share(), ConnectionState()
        await made.forwarder.forward(context(1, state), request(1))
        made.server.memory.hold(filler, made.server.memory.left_bytes)
        made.server.memory.may_read(filler, 0, unfinished=True)  # it has the turn
        large = memoryview(bytes(request(2)) + bytes(LARGE_BYTES))
        waiting = tasks.create_task(failure_of(made.forwarder.forward(context(1, state), large)))
        await until(lambda: made.server.memory.held_bytes > made.server.settings.memory_bytes)
        made.forwarder.follow("other", RegionEpoch(9))
        async with asyncio.timeout(10):
            assert (await waiting).may_have_happened
        made.server.memory.hold(filler, 0)


async def failure_of(answer: Awaitable[bytes | None]) -> ForwardingFailed:
    with pytest.raises(ForwardingFailed) as failed:
        await answer
    return failed.value


async def test_INV_FW10_no_client_connection_is_newer_than_the_newest() -> None:
    """Else the abort of a transaction that came over it ended the acting node (INV-TO3)."""
    answers = Answers()
    said = structs.replace(message(7), client_connection_id=9, newest_connection_id=3)
    await ForwardTarget(answers, Acting())._forward(session(), said, request(1))
    (peer,) = answers.peers
    assert peer.connection_id <= peer.numbering.newest


@pytest.mark.parametrize("number", [-1, 1 << 40])
@pytest.mark.parametrize("named", ["client_connection_id", "newest_connection_id", "channel"])
async def test_INV_FW10_numbers_that_no_node_counts_up_to_are_refused(
    named: str, number: int
) -> None:
    """They are sent on to the nodes that lead other partitions, where numbers have 64 bits."""
    if named == "channel" and number > 0:
        number = -(1 << 20)  # a great one counts as the greatest
    said = structs.replace(message(7), **{named: number})
    with pytest.raises(PeerRefused, match="no node counts so") as refused:
        await ForwardTarget(Answers(), Acting())._forward(session(), said, request(1))
    assert refused.value.code == "close-connection"
