"""The controller of a region as a step function: an event and the time in, effects out (what a driver owes: the package).

INV-CK1  it proposes only while it leads the quorum, and only for the term that it leads
INV-CK2  one proposal at a time; after an unknown outcome none before the metadata show what became of it, or a new term begins:
         then they hold it, or it never comes
INV-CK3  a refusal is not asked for again before time passed or the metadata changed
INV-CK4  who is silent is fenced before anybody is elected, and leaders first, the main group's before others; then leaders are elected,
         then orders are carried out, then nodes are let in
INV-CK5  where nobody can lead, that is said once for each cause, with who is awaited, and when it is over
INV-CK6  time that passed without an event counts as `look_max_ms` at most: a controller that stood still holds it against nobody,
         and one that stands still again and again fences later, but does fence
Not here: who is heard (`sessions`), who leads next (`elections`), operators' orders (`orders`).
"""

from dataclasses import dataclass, field
from typing import assert_never

from idempotency.fencing import EpochExhausted
from region_broker.controller.cluster.elections import (
    candidates,
    due_election,
    due_group_election,
    group_candidates,
)
from region_broker.controller.cluster.events import (
    CommandSettled,
    ControllerCommand,
    DamagedElected,
    DamageKnown,
    DrainAsked,
    Effect,
    Event,
    FolderReplaced,
    Heard,
    ImageChanged,
    Leads,
    LeadsNoMore,
    Lost,
    Offline,
    Online,
    OrderAnswered,
    Outcome,
    PreferredAsked,
    Propose,
    Ticked,
    UncleanAsked,
)
from region_broker.controller.cluster.orders import Orders, is_past
from region_broker.controller.cluster.sessions import Sessions
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_commands import (
    ElectGroupLeader,
    ElectLeader,
    FenceNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership
from region_broker.controller.group_rows import groups_of, in_sync_in_all
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member, Term

NOT_LEADING = "this node does not lead the metadata quorum: ask the one that does"


@dataclass(slots=True)
class _Pending:
    """What was proposed. `is_unknown`: nobody can say what becomes of it."""

    number: int
    command: ControllerCommand
    is_order: bool
    is_unknown: bool = False


@dataclass(slots=True)
class _Reign:
    """What is known for as long as this member leads the quorum, and no longer."""

    term: Term
    sessions: Sessions
    orders: Orders
    pending: _Pending | None = None
    refused_at: tuple[int, int] | None = None
    """When a proposal was refused (ms), and under which version of the metadata."""
    awaited: dict[int, tuple[Member, ...]] = field(default_factory=dict)
    """Whom `Offline` named, by group."""


class ControllerCore:
    """The controller of one voter; made once for each process, and given one event after the other."""

    def __init__(self, settings: ControllerSettings, image: MetadataImage, now_ms: int) -> None:
        """Begin without leading anything, with the metadata as they are."""
        self._settings = settings
        self._image = image
        self._now_ms = now_ms
        self._looked_ms = 0
        """Time that passed while this one looked: all that is counted here (INV-CK6)."""
        self._reign: _Reign | None = None
        self._damaged: frozenset[Member] = frozenset()
        self._last_number = 0
        self._effects: list[Effect] = []

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; the effects are to be carried out in their order."""
        assert now_ms >= self._now_ms, "the clock is monotonic"
        self._looked_ms += min(now_ms - self._now_ms, self._settings.look_max_ms)
        self._now_ms = now_ms
        self._take(event)
        if self._reign is not None:
            self._decide(self._reign)
        effects, self._effects = self._effects, []
        return effects

    def _take(self, event: Event) -> None:
        match event:
            case Leads(term, image):
                self._begin(term, image)
            case LeadsNoMore():
                self._end()
            case ImageChanged(image):
                self._follow(image)
            case DamageKnown(members):
                self._damaged = members
            case PreferredAsked() | DrainAsked() | UncleanAsked():
                self._take_order(event)
            case Heard() | Lost() | CommandSettled() | Ticked():
                self._take_while_leading(event)
            case _:
                assert_never(event)

    def _take_while_leading(self, event: Heard | Lost | CommandSettled | Ticked) -> None:
        reign = self._reign
        if reign is None:
            return
        match event:
            case Heard(member, life, opens_logs):
                reign.sessions.heard(member, life, self._looked_ms, opens_logs=opens_logs)
            case Lost(member, life):
                reign.sessions.lost(member, life, self._looked_ms)
            case CommandSettled():
                self._settle(reign, event)
            case Ticked():
                reign.sessions.look(self._looked_ms)
            case _:
                assert_never(event)

    # --- the reign ---

    def _begin(self, term: Term, image: MetadataImage) -> None:
        self._end()
        self._image = image
        sessions = Sessions(self._settings, image, self._looked_ms)
        self._reign = _Reign(term, sessions, Orders(self._settings.orders_max))

    def _end(self) -> None:
        if self._reign is None:
            return
        for ticket in self._reign.orders.tickets():
            text = (
                "this node leads the metadata quorum no more, and cannot say: look, and order again"
            )
            self._effects.append(OrderAnswered(ticket, Outcome.UNKNOWN, text))
        self._reign = None

    def _follow(self, image: MetadataImage) -> None:
        assert image.version >= self._image.version, "images come in order"
        former, self._image = self._image, image
        reign = self._reign
        if reign is None:
            return
        reign.sessions.follow(image, self._looked_ms)
        pending = reign.pending
        if pending is not None and pending.is_unknown and is_past(image, pending.command):
            reign.pending = None  # INV-CK2
        for node_id, node in sorted(image.nodes.items()):
            known = former.nodes.get(node_id)
            if known is not None and known.incarnation != node.incarnation:
                self._effects.append(FolderReplaced(known.member, node.member))

    def _take_order(self, order: PreferredAsked | DrainAsked | UncleanAsked) -> None:
        if self._reign is None:
            self._effects.append(OrderAnswered(order.ticket, Outcome.REFUSED, NOT_LEADING))
        elif not self._reign.orders.add(order):
            text = f"{self._settings.orders_max} orders wait already: try again"
            self._effects.append(OrderAnswered(order.ticket, Outcome.REFUSED, text))

    def _settle(self, reign: _Reign, settled: CommandSettled) -> None:
        pending = reign.pending
        if pending is None or pending.number != settled.number:
            return
        if settled.outcome is Outcome.UNKNOWN and not is_past(self._image, pending.command):
            pending.is_unknown = True
        else:
            reign.pending = None
        if settled.outcome is Outcome.REFUSED:
            reign.refused_at = self._looked_ms, self._image.version
        if pending.is_order:
            pending.is_order = False
            answer = reign.orders.settle(settled.outcome, settled.text)
            self._effects += () if answer is None else (answer,)

    # --- decisions ---

    def _decide(self, reign: _Reign) -> None:
        if reign.pending is None and not self._is_held(reign):
            command = self._next_command(reign)
            if command is None:
                command = self._next_order(reign)
                is_order = command is not None
                command = command or self._next_let_in(reign)
            else:
                is_order = False
            if command is not None:
                self._propose(reign, command, is_order=is_order)
        self._tell_offline(reign)

    def _is_held(self, reign: _Reign) -> bool:
        if reign.refused_at is None:
            return False
        refused_ms, version = reign.refused_at
        waits = self._looked_ms - refused_ms < self._settings.retry_ms
        return waits and self._image.version == version  # INV-CK3

    def _next_command(self, reign: _Reign) -> ControllerCommand | None:
        silent = reign.sessions.silent()
        if silent:  # INV-CK4
            leaders = [row.leader for row in groups_of(self._image).values()]
            node = min(
                silent,
                key=lambda node: (
                    node.member not in leaders[:1],
                    node.member not in leaders,
                    node.node_id,
                ),
            )
            return FenceNode(node.node_id, node.life)
        try:
            return self._due_election(reign)
        except EpochExhausted:
            return None  # `_tell_offline` says so

    def _due_election(self, reign: _Reign) -> ElectLeader | ElectGroupLeader | None:
        preferred, opening = self._settings.preferred_node_id, reign.sessions.opening()
        due = due_election(self._image, preferred, self._damaged, opening)
        return due or due_group_election(self._image)

    def _next_order(self, reign: _Reign) -> ControllerCommand | None:
        command, answers = reign.orders.next_command(self._image, self._damaged)
        self._effects += answers
        return command

    def _next_let_in(self, reign: _Reign) -> ControllerCommand | None:
        returned = reign.sessions.returned(self._looked_ms)
        return UnfenceNode(returned[0].node_id, returned[0].life) if returned else None

    def _propose(self, reign: _Reign, command: ControllerCommand, *, is_order: bool) -> None:
        self._last_number += 1
        reign.pending = _Pending(self._last_number, command, is_order)
        self._effects.append(Propose(self._last_number, reign.term, command))
        if isinstance(command, ElectLeader) and command.leader in self._damaged:
            self._effects.append(DamagedElected(command.leader))

    # --- what is said loudly ---

    def _tell_offline(self, reign: _Reign) -> None:
        rows = groups_of(self._image)
        main = rows.get(MAIN_GROUP)
        if main is None:
            return
        for group in sorted({*reign.awaited, *rows}):
            row = rows.get(group, main)  # who leads the main group leads all that is not spread
            if row.leader is not None:
                if reign.awaited.pop(group, None) is not None:
                    self._effects.append(Online(row.leader, group))
            elif group in rows:
                self._tell_not_led(reign, group, row)

    def _tell_not_led(self, reign: _Reign, group: int, row: Leadership) -> None:
        is_main = group == MAIN_GROUP
        awaited = in_sync_in_all(self._image) if is_main else row.in_sync
        why = "none of those that hold all that was committed is heard"
        able = candidates(self._image, None) if is_main else group_candidates(self._image, group)
        try:
            self._due_election(reign)
        except EpochExhausted as error:
            awaited, why = (), str(error)
        else:
            if able:
                return
        if reign.awaited.get(group) != awaited:  # INV-CK5
            reign.awaited[group] = awaited
            self._effects.append(Offline(awaited, why, group))
