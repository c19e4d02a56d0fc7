"""The controller's driver: whose life is heard, in which term is proposed, and when a proposal is settled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import msgspec

from idempotency.identity import Member
from region_broker.controller.cluster.core import ControllerCore
from region_broker.controller.cluster.events import (
    CommandSettled,
    ControllerCommand,
    DamageKnown,
    DrainAsked,
    Effect,
    Event,
    Heard,
    ImageChanged,
    Leads,
    LeadsNoMore,
    Lost,
    OrderAnswered,
    Outcome,
    Propose,
    Ticked,
)
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_commands import RegisterNode, UnfenceNode
from region_broker.controller.metadata_commands import PutDomain
from region_broker.controller.raft.effects import AppendRequest, Message, Role, RoleChanged
from region_broker.controller.raft.entries import Term
from region_broker.region.cluster.controller_driver import ControllerDriver
from tests.fixtures.cluster_images import life, main_domain, node
from tests.fixtures.metadata_members import Node, three_nodes
from tests.fixtures.raft_groups import Bus, until
from tests.simulation.simulated_loop import LoopClock, run_simulated

SETTINGS = ControllerSettings()


class Heeded:
    """The core of a driver, and what it was told; `answers` come instead of its own next effects."""

    def __init__(self, core: ControllerCore) -> None:
        self._core = core
        self.told: list[Event] = []
        self.answers: list[list[Effect]] = []

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        self.told.append(event)
        return self.answers.pop(0) if self.answers else self._core.step(event, now_ms)


class Lives:
    """Which life the connection of each member has named."""

    def __init__(self) -> None:
        self.named: dict[Member, UUID] = {}
        self.opening: set[Member] = set()

    def life_of(self, member: Member) -> UUID | None:
        return self.named.get(member)

    def opens_logs(self, member: Member) -> bool:
        return member in self.opening


class Controller:
    """The driver of one of three stores."""

    def __init__(self, at: Node) -> None:
        self.at = at
        self.lives = Lives()
        self.driver = ControllerDriver(at.store, at.member, life(at.node_id), LoopClock(), SETTINGS)
        self.driver.lives = self.lives
        self.core = Heeded(self.driver._core)
        self.driver._core = cast("Any", self.core)
        self._running = asyncio.get_running_loop().create_task(self.driver.run())

    async def propose(self, command: ControllerCommand, *, behind: int = 0) -> CommandSettled:
        """Let the core propose in the present term, or so many before it; return how that was settled, which is once."""
        term = Term(self.at.store.group.term - behind)
        self.core.told.clear()
        self.core.answers = [[Propose(7, term, command)]]
        await until(lambda: self.settled)
        await asyncio.sleep(2)
        (settled,) = self.settled
        assert settled.number == 7
        return settled

    @property
    def settled(self) -> list[CommandSettled]:
        return [event for event in self.core.told if isinstance(event, CommandSettled)]

    @property
    def begun(self) -> list[Leads]:
        return [event for event in self.core.told if isinstance(event, Leads)]

    @property
    def heard(self) -> dict[Member, list[UUID]]:
        found: dict[Member, list[UUID]] = {}
        for event in self.core.told:
            if isinstance(event, Heard):
                found.setdefault(event.member, []).append(event.life)
        return found

    @property
    def leading(self) -> list[Event]:
        return [event for event in self.core.told if isinstance(event, Leads | LeadsNoMore)]

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


@asynccontextmanager
async def controlled() -> AsyncIterator[tuple[Controller, list[Node]]]:
    """The controller of the first of three stores, which leads their quorum; the region has a domain."""
    nodes = await three_nodes(Bus())
    await nodes[0].store.apply(PutDomain(main_domain()))
    controller = Controller(nodes[0])
    await asyncio.sleep(0)
    yield controller, nodes
    await controller.close()


def leads(controller: Controller) -> None:
    group = controller.at.store.group
    controller.driver.role_changed(RoleChanged(Role.LEADER, group.term, controller.at.member))


def follows(controller: Controller) -> None:
    controller.driver.role_changed(RoleChanged(Role.FOLLOWER, controller.at.store.group.term, None))


def registered(at: Node, start: int = 1) -> RegisterNode:
    named = msgspec.structs.replace(
        node(at.node_id, start=start), incarnation=at.incarnation, life=life(at.node_id, start)
    )
    return RegisterNode(named)


def simulated(
    body: Callable[[Controller, list[Node]], Awaitable[None]],
) -> Callable[[], None]:
    """Run a test on simulated time."""

    async def main() -> None:
        async with controlled() as (controller, nodes):
            await body(controller, nodes)

    def test() -> None:
        run_simulated(main(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


# -- proposals ---------------------------------------------------------------------------------------


@simulated
async def test_INV_CND1_a_proposal_is_settled_once_behind_the_image_that_it_made(
    controller: Controller, nodes: list[Node]
) -> None:
    await nodes[0].store.apply(registered(nodes[0]))
    settled = await controller.propose(UnfenceNode(1, life(1)))
    assert settled.outcome is Outcome.DONE
    told = controller.core.told
    made = next(
        event
        for event in told
        if isinstance(event, ImageChanged) and not event.image.nodes[1].fenced
    )
    assert told.index(made) < told.index(settled)


@simulated
async def test_INV_CND1_what_was_decided_in_a_former_term_is_not_proposed(
    controller: Controller, nodes: list[Node]
) -> None:
    await nodes[0].store.apply(registered(nodes[0]))
    settled = await controller.propose(UnfenceNode(1, life(1)), behind=1)
    assert settled.outcome is Outcome.REFUSED
    assert nodes[0].store.image.nodes[1].fenced


@simulated
async def test_INV_CND1_nor_what_was_decided_by_who_leads_the_quorum_no_more(
    controller: Controller, nodes: list[Node]
) -> None:
    """It would be passed on to whoever leads now, who may have decided otherwise."""
    await nodes[0].store.apply(registered(nodes[0]))
    nodes[0].bus.cut.add(nodes[0].member)
    await until(lambda: any(each.store.group.leads for each in nodes[1:]))
    nodes[0].bus.cut.clear()
    await until(lambda: not nodes[0].store.group.leads and nodes[0].store.group.leader)
    settled = await controller.propose(UnfenceNode(1, life(1)))
    assert settled.outcome is Outcome.REFUSED
    assert nodes[0].store.image.nodes[1].fenced


@simulated
async def test_a_proposal_that_the_metadata_refuse_is_refused(
    controller: Controller, nodes: list[Node]
) -> None:
    settled = await controller.propose(UnfenceNode(1, life(1)))
    assert settled.outcome is Outcome.REFUSED
    assert "no node 1" in settled.text


@simulated
async def test_INV_CND1_what_may_be_applied_yet_is_not_refused(
    controller: Controller, nodes: list[Node]
) -> None:
    """1. A proposal is in the log of a leader that is cut off. 2. It leads no more. 3. The next leader may have the entry, or not."""
    await nodes[0].store.apply(registered(nodes[0]))
    nodes[0].bus.cut.add(nodes[0].member)
    settled = await controller.propose(UnfenceNode(1, life(1)))
    assert settled.outcome is Outcome.UNKNOWN


# -- leading the quorum ------------------------------------------------------------------------------


def test_it_begins_to_decide_behind_all_that_former_terms_committed() -> None:
    """1. A leader commits, and dies before the others hear so. 2. One of them leads. 3. It must not decide without that command."""
    controllers: dict[int, Controller] = {}
    lacking: list[bool] = []

    def on_role(change: RoleChanged) -> None:
        if change.role is Role.LEADER and controllers:
            assert change.leader is not None
            new = controllers[change.leader.node_id]
            lacking.append(1 not in new.at.store.image.nodes)
            new.driver.role_changed(change)

    async def main() -> None:
        first, *others = nodes = await three_nodes(Bus(), on_role=on_role)
        bus = first.bus
        committed = first.store.quorum.commit_index

        def dies(sender: Member, _target: Member, message: Message) -> None:
            if isinstance(message, AppendRequest) and message.commit_index > committed:
                bus.cut.add(sender)

        controllers.update({each.node_id: Controller(each) for each in nodes})
        await asyncio.sleep(0)
        bus.watch = dies
        await first.store.apply(registered(first))
        bus.watch = lambda *_: None
        await first.crash()
        await until(lambda: any(controllers[each.node_id].begun for each in others))
        (begun,) = [found for each in others for found in controllers[each.node_id].begun]
        assert lacking == [True], "nobody had heard that it was committed"
        assert 1 in begun.image.nodes
        for controller in controllers.values():
            await controller.close()

    run_simulated(main(), 1)


@simulated
async def test_it_does_not_begin_to_decide_where_its_term_is_over_meanwhile(
    controller: Controller, nodes: list[Node]
) -> None:
    leads(controller)
    follows(controller)
    await asyncio.sleep(2)
    assert controller.leading == [LeadsNoMore(), LeadsNoMore()]
    leads(controller)
    await asyncio.sleep(2)
    assert [type(event) for event in controller.leading[2:]] == [LeadsNoMore, Leads]


# -- who is heard ------------------------------------------------------------------------------------


@simulated
async def test_INV_CND2_nobody_is_heard_before_his_own_connection_has_said_who_he_is(
    controller: Controller, nodes: list[Node]
) -> None:
    """A node answers on the connection that is made to it: that one does not say which process answers."""
    other = nodes[1].member
    controller.driver.on_heard(other)
    controller.driver.on_lost(other)
    await asyncio.sleep(0)
    assert other not in controller.heard
    controller.lives.named[other] = life(2)
    controller.driver.on_heard(other)
    await asyncio.sleep(0)
    assert controller.heard[other] == [life(2)]


@simulated
async def test_INV_CND2_who_is_lost_is_the_process_that_was_heard_last(
    controller: Controller, nodes: list[Node]
) -> None:
    other = nodes[1].member
    for start in (1, 2):
        controller.lives.named[other] = life(2, start)
        controller.driver.on_heard(other)
    del controller.lives.named[other]  # its own connection may be the first to end
    controller.driver.on_lost(other)
    await asyncio.sleep(0)
    assert controller.heard[other] == [life(2, 1), life(2, 2)]
    assert [event for event in controller.core.told if isinstance(event, Lost)] == [
        Lost(other, life(2, 2))
    ]


@simulated
async def test_the_process_itself_is_heard_as_time_passes(
    controller: Controller, nodes: list[Node]
) -> None:
    await asyncio.sleep(SETTINGS.session_timeout_ms / 1000)
    assert len(controller.heard[nodes[0].member]) >= 10
    assert set(controller.heard[nodes[0].member]) == {life(1)}
    assert controller.core.told.count(Ticked()) >= 10


# -- orders ------------------------------------------------------------------------------------------


@simulated
async def test_an_order_is_answered_to_who_gave_it(
    controller: Controller, nodes: list[Node]
) -> None:
    answered = await controller.driver.order(lambda ticket: DrainAsked(ticket, 2))
    assert answered.outcome is Outcome.REFUSED, "this one does not decide"


@simulated
async def test_an_order_whose_caller_has_gone_is_answered_to_nobody(
    controller: Controller, nodes: list[Node]
) -> None:
    tickets: list[int] = []

    def order(ticket: int) -> DrainAsked:
        tickets.append(ticket)
        return DrainAsked(ticket, 2)

    controller.core.answers = [[]]
    caller = asyncio.get_running_loop().create_task(controller.driver.order(order))
    await until(lambda: not controller.core.answers)
    caller.cancel()
    answer = OrderAnswered(tickets[0], Outcome.DONE)
    controller.driver._carry(answer)  # before the caller has had its turn, and behind that
    await asyncio.wait([caller])
    assert caller.cancelled()
    controller.driver._carry(answer)
    assert not controller.driver._asked


@simulated
async def test_INV_CND3_who_has_damage_is_known_by_what_the_others_and_this_node_say(
    controller: Controller, nodes: list[Node]
) -> None:
    driver, other = controller.driver, nodes[1].member

    def told() -> list[frozenset[Member]]:
        return [each.members for each in controller.core.told if isinstance(each, DamageKnown)]

    for damaged in (True, True, False):
        driver.note_damage(other, damaged)
    await until(lambda: told() == [{other}, set()])
    driver.is_damaged = lambda: True
    await until(lambda: driver.says_damage)
    assert driver.damaged == {controller.at.member}
    driver.is_damaged = lambda: False
    await until(lambda: told() == [{other}, set(), {controller.at.member}, set()])
