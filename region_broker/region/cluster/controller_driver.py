"""The controller at work: what is heard and applied goes into its core, what it decides goes into the quorum's log.

INV-CND1  a proposal is made only in the term of the quorum for which it was decided, and settled once, behind the image that it made
INV-CND2  a process is heard by the life that its own connection named, whichever connection it is heard on
INV-CND3  who has damage is known on each node by what the others say as they connect, and with each probe, so also to one that has just begun
         to decide; this node's own is looked at as often
Runs on each node; the core decides only where its node leads the quorum.
Not here: what is decided (`controller.cluster`), who leads the logs because of it (`leadership`).
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, assert_never
from uuid import UUID

from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller.cluster.core import ControllerCore
from region_broker.controller.cluster.events import (
    CommandSettled,
    DamagedElected,
    DamageKnown,
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
    Order,
    OrderAnswered,
    Outcome,
    Propose,
    Ticked,
)
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.raft.effects import Role, RoleChanged
from region_broker.controller.raft.entries import Term
from region_broker.limits import NODE_PROBE_MS

_log: Final = logging.getLogger("tidemark.controller")


class Lives(Protocol):
    """Which process of a member has a connection to here (`transport.PeerTransport`)."""

    def life_of(self, member: Member) -> UUID | None:
        """Return the life that a member's own connection named, None without one."""
        ...

    def opens_logs(self, member: Member) -> bool:
        """Return whether it said on that connection that it is about to open its logs."""
        ...


class ControllerDriver:
    """A `member_line.Watcher`, too. `run` is its only task owner."""

    def __init__(
        self, store: MetadataStore, me: Member, life: UUID, clock: Clock, settings: ControllerSettings,
        opens_logs: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Decide nothing yet; `lives` is set before anything is heard. `opens_logs`: whether this node is about to open its logs."""
        self._store = store
        self._me, self._life = me, life
        self._clock = clock
        self._settings = settings
        self._opens_logs = opens_logs
        self._core = ControllerCore(settings, store.image, clock.monotonic_ms())
        self.lives: Lives | None = None
        self._known_lives: dict[Member, UUID] = {}
        self._lost: dict[Member, UUID] = {}
        """Whose connections have ended since they were heard: told to the core when it begins to decide, too."""
        self.is_damaged: Callable[[], bool] = _sound
        """Whether this node had better not lead (INV-CV5)."""
        self.damaged: frozenset[Member] = frozenset()
        """Who is known to have damage."""
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._tickets = itertools.count()
        self._asked: dict[int, asyncio.Future[OrderAnswered]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._role_changes = 0
        store.follow(self._take_image)

    # -- what comes in ---------------------------------------------------------------------------

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def _take_image(self, image: MetadataImage) -> None:
        self._put(ImageChanged(image))

    def role_changed(self, change: RoleChanged) -> None:
        """Take note of this member's role in the quorum."""
        self._role_changes += 1
        self._put(LeadsNoMore())
        if change.role is Role.LEADER and self._tasks is not None:
            began = self._begin(change.term, self._role_changes)
            self._tasks.create_task(began, name="controller-begins")

    async def _begin(self, term: Term, role_change: int) -> None:
        """Begin to decide once all is applied here that former terms have committed."""
        try:
            await self._store.read_current()
        except MetadataUnwritable as error:
            _log.info("this node leads the quorum no more: %s", error)
            return
        if role_change == self._role_changes:
            self._put(Leads(term, self._store.image))
            for member, life in self._lost.items():
                self._put(Lost(member, life))

    def on_heard(self, member: Member) -> None:
        """See `Watcher` (INV-CND2)."""
        lives = self.lives
        life = lives.life_of(member) if lives is not None else None
        if lives is not None and life is not None:
            self._known_lives[member] = life
            self._lost.pop(member, None)
            self._put(Heard(member, life, lives.opens_logs(member)))

    def on_lost(self, member: Member) -> None:
        """See `Watcher`."""
        life = self._known_lives.get(member)
        if life is not None:
            if self._store.image.node_of(member) is not None:
                self._lost[member] = life
            self._put(Lost(member, life))

    def note_damage(self, member: Member, damaged: bool) -> None:
        """Take note of what a member says of its damage (INV-CND3)."""
        if damaged is not (member in self.damaged):
            self.damaged ^= {member}
            said = "has damage that is not mended" if damaged else "has no damage any more"
            _log.warning("node %s says that it %s", member, said)
            self._put(DamageKnown(self.damaged))

    async def order(self, make: Callable[[int], Order]) -> OrderAnswered:
        """Have an operator's order carried out: `make` makes it of its ticket."""
        ticket = next(self._tickets)
        answered: asyncio.Future[OrderAnswered] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answered
        self._put(make(ticket))
        try:
            return await answered
        finally:
            del self._asked[ticket]

    @property
    def says_damage(self) -> bool:
        """Return whether this node says of itself that it has damage."""
        return self._me in self.damaged

    # -- the turns -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Decide until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._beat(), name="controller-beat")
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    while self._events:
                        self._step(self._events.popleft())
        finally:
            self._tasks = None

    async def _beat(self) -> None:
        """Let time pass for the core; this very process is heard, too."""
        looked_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(self._settings.heartbeat_ms)
            if self._clock.monotonic_ms() - looked_ms >= NODE_PROBE_MS:
                looked_ms = self._clock.monotonic_ms()
                self.note_damage(self._me, self.is_damaged())
            self._put(Heard(self._me, self._life, self._opens_logs()))
            self._put(Ticked())

    def _step(self, event: Event) -> None:
        for effect in self._core.step(event, self._clock.monotonic_ms()):
            self._carry(effect)

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Propose():
                assert self._tasks is not None
                self._tasks.create_task(self._propose(effect), name="controller-proposes")
            case OrderAnswered(ticket=ticket):
                asked = self._asked.get(ticket)
                if asked is not None and not asked.done():
                    asked.set_result(effect)
            case Offline(awaited=awaited, why=why, group=group):
                names = ", ".join(map(str, awaited)) or "nobody"
                _log.error(
                    "nobody leads %s of this region: %s; awaited: %s", _logs_of(group), why, names
                )
            case Online(leader=leader, group=group):
                _log.warning("%s of this region are led again, by node %s", _logs_of(group), leader)
            case DamagedElected(leader=leader):
                _log.error(
                    "node %s is to lead, and has damage that is not mended: readers of that are refused. Nobody else who is heard has"
                    " all that was committed: start the other nodes (docs/runbooks/damaged_log.md)", leader,
                )  # fmt: skip
            case FolderReplaced(former=former, present=present):
                _log.warning(
                    "node %d came back with another data folder (%s, it had %s): it copies everything, and what only the"
                    " former one held is not there", present.node_id, present, former,
                )  # fmt: skip
            case _:
                assert_never(effect)

    async def _propose(self, proposed: Propose) -> None:
        """Have it applied, and settle it (INV-CND1)."""
        outcome, text = Outcome.DONE, ""
        try:
            await self._store.apply(proposed.command, in_term=proposed.term)
        except MetadataInDoubt as error:
            outcome, text = Outcome.UNKNOWN, str(error)
        except (CommandRefused, MetadataUnwritable) as error:
            outcome, text = Outcome.REFUSED, str(error)
        _log.info("%s: %s %s", proposed.command, outcome.name, text)
        self._put(CommandSettled(proposed.number, outcome, text))


def _logs_of(group: int) -> str:
    return "the logs" if group == MAIN_GROUP else f"the logs of data group {group}"


def _sound() -> bool:
    return False
