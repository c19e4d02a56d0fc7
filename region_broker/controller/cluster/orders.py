"""What operators order of a controller: one after the other, each judged before it is proposed.

INV-CW2  an operator's word lets nobody lead that has damage while somebody else could (INV-CV5)
INV-CW1  each order that is taken is answered once: it was done, it was refused with the way out, or nobody can say
Not here: what a controller does by itself (`core`).
"""

from collections import deque
from collections.abc import Set
from typing import assert_never

from idempotency.fencing import EpochExhausted
from region_broker.controller import metadata_commands
from region_broker.controller.cluster.elections import NOBODY, candidates, elect
from region_broker.controller.cluster.events import (
    ControllerCommand,
    DrainAsked,
    Order,
    OrderAnswered,
    Outcome,
    PreferredAsked,
    UncleanAsked,
)
from region_broker.controller.cluster_commands import DrainNode, ElectUnclean
from region_broker.controller.cluster_image import NO_LEADERSHIP, NodeImage
from region_broker.controller.leadership_rules import next_leader_epoch
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import (
    DEFAULT_DOMAIN,
    NO_REGION_EPOCH,
    MetadataImage,
)
from region_broker.controller.raft.entries import Member


class Orders:
    """The orders that wait, the oldest first, whose command may be on its way."""

    def __init__(self, waiting_max: int) -> None:
        """Let at most `waiting_max` wait."""
        self._waiting: deque[Order] = deque()
        self._waiting_max = waiting_max
        self._is_drained = False
        """Whether the drain that is first was carried out: what is left is that another one leads."""

    def add(self, order: Order) -> bool:
        """Let an order wait; False where too many do."""
        if len(self._waiting) >= self._waiting_max:
            return False
        self._waiting.append(order)
        return True

    def tickets(self) -> list[int]:
        """Return the tickets of those that wait."""
        return [order.ticket for order in self._waiting]

    def next_command(
        self, image: MetadataImage, damaged: Set[Member] = NOBODY
    ) -> tuple[ControllerCommand | None, list[OrderAnswered]]:
        """Return what to propose for the first order that needs it, and the answers of those before it."""
        answers: list[OrderAnswered] = []
        while self._waiting:
            try:
                command = self._command_of(image, self._waiting[0], damaged)
            except (CommandRefused, EpochExhausted) as error:
                answers.append(self._answered(Outcome.REFUSED, str(error)))
                continue
            if command is not None:
                return command, answers
            answers.append(self._answered(Outcome.DONE, ""))
        return None, answers

    def settle(self, outcome: Outcome, text: str) -> OrderAnswered | None:
        """Take what the first order's command came to; a node that drains may still lead."""
        if isinstance(self._waiting[0], DrainAsked) and outcome is Outcome.DONE:
            self._is_drained = True
            return None
        return self._answered(outcome, text)

    def _answered(self, outcome: Outcome, text: str) -> OrderAnswered:
        self._is_drained = False
        return OrderAnswered(self._waiting.popleft().ticket, outcome, text)

    def _command_of(
        self, image: MetadataImage, order: Order, damaged: Set[Member]
    ) -> ControllerCommand | None:
        """Return the command that the order needs now, None if it is done.

        Raises `CommandRefused`, `EpochExhausted`.
        """
        match order:
            case PreferredAsked(preferred_node_id=preferred):
                command = _preferred(image, preferred, damaged)
            case DrainAsked(node_id=node_id):
                command = None if self._is_drained else _drained(image, node_id)
            case UncleanAsked():
                command = _unclean(image, order)
            case _:
                assert_never(order)
        if command is not None:
            metadata_commands.apply(image, command)  # refused here, with the reason, or proposed
        return command


def _preferred(
    image: MetadataImage, node_id: int | None, damaged: Set[Member]
) -> ControllerCommand | None:
    domain = image.domains.get(DEFAULT_DOMAIN)
    able = candidates(image, None, damaged)
    if node_id is not None:
        chosen = _node(image, node_id).member
    elif able:
        chosen = able[0]
    else:
        raise CommandRefused(
            "nobody-eligible",
            "nobody who holds all that was committed is heard: start those nodes, or order an unclean election",
        )
    if image.leadership is not None and image.leadership.leader == chosen:
        return None
    _judge_damage(chosen, [member for member in able if member not in damaged], damaged)
    return elect(image, domain.region_epoch if domain else NO_REGION_EPOCH, chosen)


def _judge_damage(chosen: Member, sound: list[Member], damaged: Set[Member]) -> None:
    if chosen in damaged and sound:  # INV-CW2
        names = ", ".join(str(member.node_id) for member in sound)
        raise CommandRefused(
            "node-damaged",
            f"node {chosen.node_id} says that something on its disk is damaged, or gone, and not mended: leading, it would refuse readers what"
            f" others serve. Let one of these nodes lead: {names}; or mend it first (tidemark cluster status says what,"
            " docs/runbooks/damaged_log.md what to do)",
        )


def _node(image: MetadataImage, node_id: int) -> NodeImage:
    node = image.nodes.get(node_id)
    if node is None:
        raise CommandRefused(
            "unknown-node", f"no node {node_id} is registered in this region: look for its id"
        )
    return node


def _drained(image: MetadataImage, node_id: int) -> ControllerCommand | None:
    node = _node(image, node_id)
    return None if node.draining else DrainNode(node_id, node.life)


def _unclean(image: MetadataImage, order: UncleanAsked) -> ControllerCommand:
    domain = image.domains.get(DEFAULT_DOMAIN)
    region_epoch = domain.region_epoch if domain else NO_REGION_EPOCH
    version = image.leadership.version if image.leadership else NO_LEADERSHIP
    return ElectUnclean(order.member, next_leader_epoch(image, region_epoch), version)


def is_past(image: MetadataImage, command: ControllerCommand) -> bool:
    """Return whether the command would change nothing now: it was applied, or what it was for is over."""
    try:
        after = metadata_commands.apply(image, command)
    except CommandRefused:
        return True
    changed, present = ((each.nodes, each.leadership, each.spread) for each in (after, image))
    return changed == present
