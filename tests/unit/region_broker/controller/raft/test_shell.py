"""A group on raftos' node, roles and timers (INV-RV1 to INV-RV3), and what carries its effects out (INV-RK1 to INV-RK5)."""

import asyncio
import copy
import errno
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from region_broker.controller.raft import carrying, durable
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    AppendAnswer,
    MembershipAsked,
    Message,
    Persist,
    ReadAsked,
    Role,
    SnapshotRequest,
    TransferAsked,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import Entry, HardState, Member, Membership
from region_broker.controller.raft.failures import (
    Busy,
    Lost,
    NotLeader,
    RaftStoreFailed,
    RaftStoreFull,
    Refused,
)
from region_broker.controller.raft.group_setup import SNAPSHOT_AFTER_BYTES, GroupSetup
from region_broker.controller.raft.handing_over import AGAIN_MS, PAUSE_MS_MIN
from region_broker.controller.raft.log_content import merged
from region_broker.controller.raft.log_file import frame_bytes
from region_broker.controller.raft.raftos_classes import RaftosLeader, RaftosNode, RaftosState
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import GroupLeader, GroupTimer, RaftGroup
from region_broker.ports.offload import Offload
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.raft_groups import (
    FOLDER,
    QUICK,
    Commands,
    Site,
    alone,
    leader_of,
    member,
    several,
    until,
)
from tests.simulation.disk import SimulatedDisk
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import LoopClock, run_simulated

Body = Callable[[], Coroutine[Any, Any, None]]


def simulated(body: Body) -> Callable[[], None]:
    """Run a test on simulated time."""

    def test() -> None:
        run_simulated(body(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


# -- a quorum of one ---------------------------------------------------------------------------


@simulated
async def test_a_member_alone_leads_commits_and_applies() -> None:
    """INV-RK3: a caller that is told of its entry finds it applied."""
    async with alone() as site:
        # 1 and 2 are the leader's own: its term's first entry, and the first membership
        assert await site.running.propose(b"a") == 3
        assert await site.running.propose(b"b") == 4
        assert site.machine.taken == [b"a", b"b"]
        assert await site.running.ask(ReadAsked) == 4
        assert [change.role for change in site.roles] == [Role.FOLLOWER, Role.LEADER]


def begun_by_hand(machine: Commands, offload: Offload, snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES) -> RaftGroup:  # fmt: skip
    """Return a group of one that nobody runs."""
    setup = GroupSetup(
        member=member(1), founders=Membership((member(1),)), disk=SimulatedDisk(), folder=FOLDER,
        clock=LoopClock(), chance=SeededChance(random.Random(1)), offload=offload, snapshot_after_bytes=snapshot_after_bytes,
    )  # fmt: skip
    return RaftGroup(setup, machine)


@simulated
async def test_INV_RK6_before_a_group_runs_whoever_asks_carries_it_out() -> None:
    machine = Commands()
    group = begun_by_hand(machine, asyncio.to_thread)
    await group.begin()
    await asyncio.gather(*(group.propose(b"%d" % number) for number in range(5)))
    assert machine.taken == [b"%d" % number for number in range(5)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run())
        await group.propose(b"run")
        group.stop()
    assert machine.taken[-1] == b"run"


@simulated
async def test_INV_RK6_a_turn_that_is_given_up_in_the_middle_was_the_last_one() -> None:
    hanging = asyncio.Event()
    begun = asyncio.Event()

    async def offload(work: Callable[[], None]) -> None:
        if hanging.is_set():
            begun.set()
            await asyncio.Event().wait()
        work()

    group = begun_by_hand(Commands(), offload)
    await group.begin()
    hanging.set()
    async with asyncio.TaskGroup() as tasks:
        given_up = tasks.create_task(group.propose(b"a"))
        await begun.wait()
        given_up.cancel()
    hanging.clear()
    with pytest.raises(NotLeader):
        await group.propose(b"b")


class Slow(Commands):
    """Takes a command when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def apply(self, entries: Sequence[Entry]) -> None:
        self.is_asked.set()
        await self.may_go_on.wait()
        await super().apply(entries)


@simulated
async def test_INV_RK6_who_closes_a_group_waits_for_the_turn_that_is_under_way() -> None:
    machine = Slow()
    machine.may_go_on.set()
    group = begun_by_hand(machine, asyncio.to_thread, snapshot_after_bytes=1)
    await group.begin()
    machine.is_asked.clear()
    machine.may_go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(group.run())
        tasks.create_task(group.propose(b"a"))
        await machine.is_asked.wait()
        closing = tasks.create_task(group.close())
        await asyncio.sleep(1)
        assert not closing.done()
        machine.may_go_on.set()
        await closing
        await running  # its image was written behind the command: into a store that is open
    assert (machine.taken, machine.images) == ([b"a"], 1)


@simulated
async def test_what_was_committed_outlives_the_power() -> None:
    """INV-RK4: each is applied once, in order, in each life."""
    async with alone() as site:
        await asyncio.gather(*(site.running.propose(b"%d" % number) for number in range(20)))
        await site.crash()
        group = site.start()
        await until(lambda: len(site.machine.taken) == 20)
        assert site.machine.taken == [b"%d" % number for number in range(20)]
        assert await group.propose(b"more") > 22


@simulated
async def test_proposals_that_come_during_a_sync_share_the_next_one() -> None:
    """INV-RK1."""
    is_outside, may_go_on = asyncio.Event(), asyncio.Event()
    may_go_on.set()

    async def offload(work: Callable[[], None]) -> None:
        is_outside.set()
        await may_go_on.wait()
        work()

    async with alone(offload=offload) as site:
        await site.running.propose(bytes(70_000))  # and room for the others is taken
        syncs: list[Path] = []
        site.disk.fault = lambda name, path: syncs.append(path) if name == "fdatasync" else None
        is_outside.clear()
        may_go_on.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(site.running.propose(b"first"))
            await is_outside.wait()
            for _ in range(100):
                tasks.create_task(site.running.propose(b"x"))
            await asyncio.sleep(0)
            may_go_on.set()
        assert len(syncs) == 2


@simulated
async def test_an_image_takes_the_place_of_the_log() -> None:
    async with alone(snapshot_after_bytes=5000, settings=QUICK) as site:
        for number in range(100):
            await site.running.propose(b"%0100d" % number)
        assert site.disk.exists(FOLDER / "snapshot")
        assert site.disk.file_size(FOLDER / "log") < 80_000
        await site.crash()
        site.start()
        await until(lambda: len(site.machine.taken) == 100)
        assert site.machine.loaded == 1
        assert site.machine.taken == [b"%0100d" % number for number in range(100)]


@simulated
async def test_a_full_disk_refuses_proposals_and_the_member_goes_on() -> None:
    """INV-RK2."""
    async with alone() as site:
        await site.running.propose(b"kept")
        site.disk.room_bytes = 0
        with pytest.raises(RaftStoreFull):
            await site.running.propose(bytes(200_000))
        await site.running.ask(ReadAsked)
        assert site.task is not None
        assert not site.task.done()
        site.disk.room_bytes = None
        await site.running.propose(b"more")
        assert site.machine.taken == [b"kept", b"more"]
        await site.crash()
        site.start()
        await until(lambda: site.machine.taken == [b"kept", b"more"])


def test_a_full_disk_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with alone() as site:
            tries: list[str] = []
            site.disk.fault = lambda name, path: tries.append(name) if name == "truncate" else None
            site.disk.room_bytes = 0
            for _ in range(50):
                with pytest.raises(RaftStoreFull):
                    await site.running.propose(bytes(200_000))
                await asyncio.sleep(0.1)
            assert len(tries) == 5, "once a second"
            site.disk.room_bytes = None
            await asyncio.sleep(carrying.FULL_MS / 1000)
            for _ in range(3):
                await site.running.propose(bytes(200_000))

    with caplog.at_level("INFO"):
        run_simulated(play(), 1)
    assert ["is full" in text for text in caplog.messages] == [True, False]


@simulated
async def test_a_member_that_starts_on_a_full_disk_waits_for_room_and_refuses_meanwhile() -> None:
    """INV-RK2: who votes alone begins with a vote and an entry."""
    async with alone() as site:
        await site.running.propose(b"kept")
        await site.crash()
        site.disk.room_bytes = 0
        group = site.start()
        with pytest.raises(RaftStoreFull):
            await group.propose(b"refused")
        assert site.task is not None
        assert not site.task.done()
        site.disk.room_bytes = None
        await until(lambda: site.machine.taken == [b"kept"])
        await site.crash()
        site.disk.room_bytes = 0
        site.start()
        await site.stop()


@simulated
async def test_of_many_proposals_those_are_refused_that_do_not_fit() -> None:
    async with alone() as site:
        await site.running.propose(b"room is taken")
        site.disk.room_bytes = 0
        wishes = [site.running.propose(bytes(20_000)) for _ in range(8)]
        results = await asyncio.gather(*wishes, return_exceptions=True)
        refused = [each for each in results if isinstance(each, RaftStoreFull)]
        assert 0 < len(refused) < 8
        assert len(site.machine.taken) == 1 + 8 - len(refused)


@simulated
async def test_an_image_that_does_not_fit_is_made_later() -> None:
    async with alone(snapshot_after_bytes=5000, settings=QUICK) as site:
        await site.running.propose(bytes(1000))
        site.disk.room_bytes = 0
        for _ in range(10):
            await site.running.propose(bytes(1000))
        assert not site.disk.exists(FOLDER / "snapshot")
        assert site.machine.images == 2
        site.disk.room_bytes = None
        for _ in range(10):
            await site.running.propose(bytes(1000))
        assert site.disk.exists(FOLDER / "snapshot")


@simulated
async def test_a_sync_that_fails_ends_the_member_and_tells_who_waits() -> None:
    async with alone() as site:
        await site.running.propose(b"room is taken")

        def fail(operation: str, path: Path) -> None:
            if operation == "fdatasync":
                raise OSError(errno.EIO, "planted", str(path))

        site.disk.fault = fail
        with pytest.raises(Lost):
            await site.running.propose(b"x")
        assert site.task is not None
        with pytest.raises(RaftStoreFailed):
            await site.task
        with pytest.raises(NotLeader):
            await site.running.propose(b"y")
        assert site.disk.open_files == 0


@simulated
async def test_what_is_too_large_or_too_many_is_refused() -> None:
    """INV-RK5."""
    settings = RaftSettings(payload_bytes_max=1000, waiting_max=2)
    async with alone(settings=settings) as site:
        with pytest.raises(Refused):
            await site.running.propose(bytes(1001))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(carrying, "INBOX_MAX", 3)
            wishes = [site.running.propose(b"x") for _ in range(5)]
            results = await asyncio.gather(*wishes, return_exceptions=True)
        assert [type(each) for each in results[3:]] == [Busy, Busy]


@simulated
async def test_a_caller_that_went_away_disturbs_nobody() -> None:
    async with alone() as site:
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(site.running.propose(b"gone"))
            await asyncio.sleep(0)
            gone.cancel()
        await site.running.propose(b"next")
        assert site.machine.taken == [b"gone", b"next"]


@simulated
async def test_two_groups_of_one_process_know_nothing_of_each_other() -> None:
    """INV-RV2."""
    async with alone() as first, alone() as second:
        await first.running.propose(b"first's")
        await second.running.propose(b"second's")
        assert (first.machine.taken, second.machine.taken) == ([b"first's"], [b"second's"])
        await first.stop()
        state = first.running.state.state
        assert isinstance(state, GroupLeader)
        assert not state.heartbeat_timer.is_active
        await second.running.propose(b"more")


# -- several -----------------------------------------------------------------------------------


@simulated
async def test_three_members_apply_the_same() -> None:
    async with several(3) as (leader, *others):
        await asyncio.gather(*(leader.running.propose(b"%d" % number) for number in range(50)))
        await until(lambda: all(len(site.machine.taken) == 50 for site in others))
        assert leader.machine.taken == others[0].machine.taken == others[1].machine.taken
        for site in others:
            with pytest.raises(NotLeader) as caught:
                await site.running.propose(b"x")
            assert caught.value.leader == leader.me
            with pytest.raises(NotLeader):
                await site.running.ask(ReadAsked)


@simulated
async def test_no_vote_and_no_answer_leaves_before_it_is_durable() -> None:
    """INV-RK1: what a member promises would be there, if the power went as the promise leaves."""
    async with several(3) as sites:
        by_member = {site.me: site for site in sites}
        promises: list[str] = []

        def watch(sender: Member, target: Member, message: Message) -> None:
            disk = copy.deepcopy(by_member[sender].disk)
            disk.power_loss(random.Random(len(promises)))
            found = RaftStore.open(disk, FOLDER, sender)[1]
            match message:
                case VoteAnswer(term=term, pre=False, granted=True):
                    assert found.hard_state == HardState(term, target)
                case AppendAnswer(taken=True, matched=matched):
                    assert len(found.entries) >= matched
                case VoteRequest(term=term, pre=False):
                    assert found.hard_state == HardState(term, sender)
                case _:
                    return
            promises.append(type(message).__name__)

        assert sites[0].bus is not None
        sites[0].bus.watch = watch
        for _ in range(5):
            await sites[0].running.propose(b"x")
        await sites[0].running.ask(lambda ticket: TransferAsked(ticket, sites[1].me))
        await leader_of(sites)
        assert {*promises} == {"VoteAnswer", "AppendAnswer", "VoteRequest"}


@simulated
async def test_when_the_leader_is_gone_another_one_goes_on() -> None:
    async with several(3) as (leader, *others):
        await leader.running.propose(b"before")
        await leader.crash()
        next_leader = await leader_of(others)
        await next_leader.running.propose(b"after")
        leader.start()
        await until(lambda: leader.machine.taken == [b"before", b"after"])
        assert leader.running.leader == next_leader.me


@simulated
async def test_a_leader_that_is_cut_off_gives_up_and_says_that_the_outcome_is_not_known() -> None:
    async with several(3) as (leader, *others):
        assert leader.bus is not None
        leader.bus.cut.add(leader.me)
        with pytest.raises(Lost):
            await leader.running.propose(b"nobody hears it")
        assert leader.roles[-1].role is Role.FOLLOWER
        await (await leader_of(others)).running.propose(b"x")
        leader.bus.cut.clear()
        await until(lambda: leader.machine.taken == [b"x"])


@simulated
async def test_who_was_away_for_long_gets_the_image() -> None:
    async with several(3, snapshot_after_bytes=3000, settings=QUICK) as (leader, away, _):
        await leader.running.propose(b"before")
        await away.crash()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(carrying, "SNAPSHOT_PIECE_BYTES", 1000)
            for number in range(50):
                await leader.running.propose(b"%0200d" % number)
            away.start()
            await until(lambda: len(away.machine.taken) == 51)
        assert away.machine.loaded > 0
        assert away.machine.taken == leader.machine.taken
        assert leader.bus is not None
        sent = [each for _, _, each in leader.bus.sent if isinstance(each, SnapshotRequest)]
        assert len({piece.position for piece in sent}) > 5
        await away.crash()
        away.start()
        await until(lambda: len(away.machine.taken) == 51)


@simulated
async def test_a_follower_whose_disk_is_full_takes_nothing_and_catches_up_later() -> None:
    """INV-RK2: entries and pieces that find no room are as if they were lost on the way."""
    async with several(3, snapshot_after_bytes=3000, settings=QUICK) as (leader, poor, _):
        poor.disk.room_bytes = 0
        for number in range(60):
            await leader.running.propose(b"%02000d" % number)
        assert len(poor.machine.taken) < 60
        assert poor.task is not None
        assert not poor.task.done()
        poor.disk.room_bytes = None
        await until(lambda: poor.machine.taken == leader.machine.taken)


@simulated
async def test_INV_RHO1_a_leader_whose_disk_is_full_has_another_one_lead() -> None:
    """What a heartbeat needs is there for ever: nobody else would be elected."""
    async with several(3) as (leader, *others):
        leader.disk.room_bytes = 0
        wishes = [leader.running.propose(bytes(2_000)) for _ in range(50)]
        results = await asyncio.gather(*wishes, return_exceptions=True)
        taken = sum(isinstance(each, int) for each in results)
        assert taken < len(wishes)
        successor = await leader_of(others)
        await successor.running.propose(b"after")
        assert successor.machine.taken[taken:] == [b"after"]
        leader.disk.room_bytes = None
        await until(lambda: leader.machine.taken == successor.machine.taken)


@simulated
async def test_INV_RHO1_a_leader_without_which_nothing_can_be_committed_leads_on() -> None:
    """Whom it handed over to would have commands in its log for which this one has no room."""
    async with several(3) as (leader, present, away):
        await away.crash()
        await asyncio.sleep(1)  # and it counts as heard no more
        term = leader.running.term
        leader.disk.room_bytes = 0
        for _ in range(5):
            wishes = [leader.running.propose(bytes(2_000)) for _ in range(50)]
            results = await asyncio.gather(*wishes, return_exceptions=True)
            assert isinstance(results[-1], RaftStoreFull)
            await asyncio.sleep(2 * AGAIN_MS / 1000)
        assert (leader.running.leads, leader.running.term) == (True, term)
        away.start()
        await until(lambda: away.machine.taken == leader.machine.taken)
        for _ in range(2):  # at the first one it may not have heard yet that it is level
            assert not await refused_or_taken(leader)
        successor = await leader_of([present, away])
        await successor.running.propose(b"after")


@simulated
async def test_INV_RHO2_where_others_have_room_again_one_of_them_leads() -> None:
    async with several(3) as sites:
        for site in sites:
            site.disk.room_bytes = 0
        for _ in range(30):  # each of them has had its turn
            await refused_or_taken(await leader_of(sites))
        full = await leader_of(sites)
        for site in sites:
            if site is not full:
                site.disk.room_bytes = None
        attempts = 0
        while not await refused_or_taken(await leader_of(sites)):
            attempts += 1
            assert attempts < PAUSE_MS_MIN / REFUSED_MS
        assert not full.running.leads


REFUSED_MS = 300


async def refused_or_taken(leader: Site) -> bool:
    """Return whether a command was taken; it is not asked for again at once."""
    try:
        await leader.running.propose(bytes(2_000))
    except (RaftStoreFull, Busy, NotLeader, Lost):
        await asyncio.sleep(REFUSED_MS / 1000)
        return False
    return True


@simulated
async def test_INV_RHO2_INV_RN2_where_all_disks_are_full_somebody_leads_and_refuses() -> None:
    async with several(3) as sites:
        for site in sites:
            site.disk.room_bytes = 0
        refusals, terms = 0, set[int]()
        while refusals < 30:
            leader = await leader_of(sites)
            terms.add(leader.running.term)
            try:
                await leader.running.propose(bytes(2_000))
            except RaftStoreFull:
                refusals += 1
                await asyncio.sleep(0.3)
            except (Busy, NotLeader, Lost):
                await asyncio.sleep(0.3)
        assert len(terms) <= 1 + len(sites)
        leader = await leader_of(sites)
        await leader.running.ask(ReadAsked)
        for site in sites:
            site.disk.room_bytes = None
        await asyncio.sleep(2 * carrying.FULL_MS / 1000)
        await leader.running.propose(b"after")


@simulated
async def test_a_member_joins_votes_and_takes_over() -> None:
    async with several(3) as (leader, *others):
        assert leader.bus is not None
        joiner = Site(leader.bus, member(4), Membership(()))
        joiner.start()
        await leader.running.propose(b"before")
        present = leader.running.membership
        await leader.running.ask(
            lambda ticket: MembershipAsked(ticket, Membership(present.voters, (joiner.me,)))
        )
        await until(lambda: joiner.machine.taken == [b"before"])
        with pytest.raises(Refused):
            await leader.running.ask(
                lambda ticket: MembershipAsked(ticket, Membership((leader.me,)))
            )
        voters = tuple(sorted((*present.voters, joiner.me)))
        await leader.running.ask(lambda ticket: MembershipAsked(ticket, Membership(voters)))
        await leader.running.ask(lambda ticket: TransferAsked(ticket, joiner.me))
        assert await leader_of([*others, leader, joiner]) is joiner
        await joiner.running.propose(b"after")
        await until(lambda: all(each.machine.taken == [b"before", b"after"] for each in others))
        await joiner.stop()


@simulated
async def test_nothing_is_persisted_that_needs_more_room_than_was_taken_for_it() -> None:
    """INV-RN1: elections, entries, memberships and what is cut, each in the file's room."""
    persist = RaftStore.persist
    kinds: set[str] = set()

    def checked(store: RaftStore, wanted: Sequence[Persist]) -> None:
        change = merged(wanted)
        assert store.has_room(frame_bytes(len(msgspec.msgpack.encode(change))))
        kinds.update(name for name in change.__struct_fields__ if getattr(change, name))
        persist(store, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaftStore, "persist", checked)
        patch.setattr(durable, "ROOM_BYTES", 0)
        async with several(3) as (leader, *others):
            assert leader.bus is not None
            joiner = Site(leader.bus, member(4), Membership(()))
            joiner.start()
            await leader.running.propose(bytes(100_000))
            voters = leader.running.membership.voters
            await leader.running.ask(
                lambda ticket: MembershipAsked(ticket, Membership(voters, (joiner.me,)))
            )
            leader.bus.cut.add(leader.me)
            with pytest.raises(Lost):
                await leader.running.propose(bytes(1000))
            await (await leader_of(others)).running.propose(bytes(2000))
            leader.bus.cut.clear()
            await until(lambda: len(leader.machine.taken) == 2)
            await joiner.stop()
    assert kinds == {"hard_state", "cut_behind", "entries"}


@simulated
async def test_messages_too_many_are_lost_and_nothing_else() -> None:
    """INV-RK5."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrying, "INBOX_MAX", 2)
        async with several(3) as (leader, *others):
            await leader.running.propose(b"x")
            await until(lambda: all(each.machine.taken == [b"x"] for each in others))


# -- raftos ------------------------------------------------------------------------------------


@simulated
async def test_the_node_the_state_and_the_roles_are_raftos() -> None:
    async with alone() as site:
        group = site.running
        assert isinstance(group, RaftosNode)
        assert isinstance(group.state, RaftosState)
        assert isinstance(group.state.state, RaftosLeader)
        assert group.state.id == f"1:{member(1).incarnation}"
        origins = {cls.__module__ for each in (group, group.state) for cls in type(each).__mro__}
        assert "region_broker.controller.raft._vendor.raftos.server" in origins
        assert "region_broker.controller.raft._vendor.raftos.state" in origins


@simulated
async def test_the_timer_of_a_role_that_is_over_never_calls_back() -> None:
    """INV-RV3."""
    calls: list[int] = []
    timer = GroupTimer(0.01, lambda: calls.append(1))
    timer.stop()
    timer.reset()
    await asyncio.sleep(0.1)
    assert calls == []
    timer.start()
    await asyncio.sleep(0.035)
    assert len(calls) == 3
    timer.reset()
    await asyncio.sleep(0.009)
    assert len(calls) == 3
    timer.stop()
    timer.reset()
    await asyncio.sleep(0.1)
    assert len(calls) == 3


# -- as it runs --------------------------------------------------------------------------------


async def test_a_member_on_a_real_disk_in_real_time(tmp_path: Path) -> None:
    founders = Membership((member(1),))

    async def life(payload: bytes) -> list[bytes]:
        machine = Commands()
        setup = GroupSetup(
            member=member(1),
            founders=founders,
            disk=RealDisk(),
            folder=tmp_path / "raft",
            clock=SystemClock(),
            chance=SystemChance(),
            snapshot_after_bytes=1000,
            settings=QUICK,
        )
        group = RaftGroup(setup, machine)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(group.run())
            await asyncio.gather(*(group.propose(payload) for _ in range(20)))
            assert await group.ask(ReadAsked) > 20
            group.stop()
        return machine.taken

    assert await life(b"first") == [b"first"] * 20
    assert await life(b"second") == [b"first"] * 20 + [b"second"] * 20
    assert sorted(path.name for path in (tmp_path / "raft").iterdir()) == ["log", "snapshot"]
