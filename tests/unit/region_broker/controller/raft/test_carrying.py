"""In which order effects are carried out, how much waits, and what an event may take (INV-RK1, INV-RK5, INV-RN1)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from region_broker.controller.raft import carrying
from region_broker.controller.raft.carrying import Carrier
from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    BeginElection,
    Effect,
    Event,
    KeepSnapshotPiece,
    MembershipAsked,
    Message,
    Persist,
    Received,
    Send,
)
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.failures import Lost
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.memberships import membership_payload
from region_broker.controller.raft.needed_room import log_bytes
from tests.fixtures.raft_groups import Commands, alone, member
from tests.simulation.simulated_loop import LoopClock, run_simulated

POINT = SnapshotPoint(LogIndex(1), Term(1), Membership((member(1),)))


def persisting(number: int) -> Persist:
    return Persist(None, LogIndex(number), ())


def sending(number: int) -> Send:
    return Send(member(2), BeginElection(Term(number)))


class Played:
    """A core that plays effects, and a store and a transport that note what comes of them."""

    membership = Membership(())
    commit_index = LogIndex(0)

    def __init__(self, effects: list[Effect]) -> None:
        self.effects = effects
        self.done: list[Any] = []
        self.stepped: list[Event] = []

    def start(self, now_ms: int) -> list[Effect]:
        return []

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        self.stepped.append(event)
        effects, self.effects = self.effects, []
        return effects

    def has_room(self, size_bytes: int) -> bool:
        return True

    def persist(self, wanted: tuple[Persist, ...]) -> None:
        self.done.append([each.cut_behind for each in wanted])

    def keep_piece(self, piece: object) -> None:
        self.done.append("piece")

    def send(self, target: Member, message: Message) -> None:
        assert isinstance(message, BeginElection)
        self.done.append(message.term)

    def close(self) -> None:
        self.done.append("closed")


def offload_at_once(work: Callable[[], None]) -> Awaitable[None]:
    work()
    return asyncio.sleep(0)


def carrier_of(played: Played) -> Carrier:
    setup = cast("Any", GroupSetup)(
        member=member(1), founders=Membership(()), disk=None, folder=None, clock=LoopClock(),
        chance=None, transport=played, offload=offload_at_once,
    )  # fmt: skip
    core, store = cast("RaftCore", played), cast("RaftStore", played)
    return Carrier(core, store, Commands(), setup, lambda change: None)


@pytest.mark.parametrize(
    ("effects", "done"),
    [
        ([sending(1), persisting(2), sending(3)], [1, [2], 3]),
        ([persisting(1), sending(2), persisting(3), sending(4)], [[1, 3], 2, 4]),
        (
            [
                persisting(1),
                sending(2),
                KeepSnapshotPiece(POINT, 0, b"", last=False),
                persisting(3),
                sending(4),
            ],
            [[1], 2, "piece", [3], 4],
        ),
    ],
)
def test_effects_are_carried_out_in_their_order_behind_what_they_need(
    effects: list[Effect], done: list[Any]
) -> None:
    """INV-RK1: what is persisted may come earlier than it stands, and nothing else."""
    played = Played(effects)

    async def play() -> None:
        carrier = carrier_of(played)
        carrier.tick()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(carrier.run())
            await asyncio.sleep(1)
            carrier.stop()

    run_simulated(play(), 1)
    assert played.done == [*done, "closed"]


def test_messages_and_ticks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-RK5."""
    monkeypatch.setattr(carrying, "INBOX_MAX", 3)
    played = Played([])

    async def play() -> None:
        carrier = carrier_of(played)
        for _ in range(3):
            carrier.tick()
        for _ in range(5):
            carrier.receive(Received(member(2), BeginElection(Term(1))))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(carrier.run())
            await asyncio.sleep(1)
            carrier.tick()
            await asyncio.sleep(1)
            carrier.stop()

    run_simulated(play(), 1)
    assert [type(event).__name__ for event in played.stepped] == [
        "Ticked", "Received", "Received", "Ticked"
    ]  # fmt: skip


def test_a_member_that_is_cancelled_leaves_its_files_to_the_thread_that_is_at_work() -> None:
    async def play(*, outside: bool) -> int:
        begun, hold = asyncio.Event(), asyncio.Event()
        hold.set()

        async def offload(work: Callable[[], None]) -> None:
            begun.set()
            await hold.wait()
            work()

        async with alone(offload=offload) as site:
            assert site.task is not None
            async with asyncio.TaskGroup() as tasks:
                if outside:
                    begun.clear()
                    hold.clear()
                    tasks.create_task(expect_lost(site.running.propose(b"x")))
                    await begun.wait()
                site.task.cancel()
                await asyncio.wait([site.task])
            return site.disk.open_files

    assert run_simulated(play(outside=False), 1) == 0
    assert run_simulated(play(outside=True), 1) == 1


async def expect_lost(wish: Awaitable[LogIndex]) -> None:
    with pytest.raises(Lost):
        await wish


def test_a_membership_of_many_members_finds_its_room() -> None:
    """INV-RN1."""
    many = Membership(tuple(map(member, range(1, 1000))))
    entry = Entry(LogIndex(2**40), Term(2**40), EntryKind.MEMBERSHIP, membership_payload(many))
    needed = log_bytes(MembershipAsked(1, many), Membership(()))
    assert needed > len(msgspec.msgpack.encode(entry))
