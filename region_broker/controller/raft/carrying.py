"""What drives one core: it takes what has gathered, carries the effects out in order, and settles callers' wishes.

INV-RK1  what a `Persist` holds is durable before any effect behind it leaves; what gathered while a sync was under way goes
         with the next one, all of it with one sync
INV-RK2  an event is given to the core only if there is room for all that the core may persist for it; one that finds no room is
         as if it had not happened: a wish is refused, a message is lost, a tick is late (INV-RT4)
INV-RK3  a wish is answered once; the one whose entry was committed after the state machine took it (INV-RAP2)
INV-RK4  the state machine is given each entry once, in order, or a snapshot in place of them
INV-RK5  what waits is bounded: a wish too many is refused, a message too many is lost
INV-RK6  a turn is carried out whole, by one task, or it was the last one: what was given up in the middle is not gone on with, and who
         closes the store waits for its end

A store that failed ends `run`, and with it the node; so does a state machine that raises. A snapshot of this member is written
between two turns: nothing else of this group happens meanwhile, so the state machine's image must stay small against the election
timeout. What is committed is applied beside the turns (`applying`); a member that is alone does it within them.
Not here: what is decided (`core`), timers and roles (`shell`), connections (a `Transport`).
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, assert_never

from region_broker.controller.raft.applying import Applying, ImageTaken
from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    Answered,
    Committed,
    DropLog,
    Effect,
    Event,
    Joining,
    KeepSnapshotPiece,
    MembershipAsked,
    Message,
    Outcome,
    PeerLost,
    Persist,
    Proposed,
    ReadAsked,
    Received,
    RoleChanged,
    Send,
    SendSnapshot,
    SnapshotRequest,
    Snapshotted,
    Ticked,
    TransferAsked,
    message_bytes,
)
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    Term,
)
from region_broker.controller.raft.failures import (
    Busy,
    Lost,
    NotLeader,
    RaftStoreError,
    RaftStoreFailed,
    RaftStoreFull,
    Refused,
)
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.raft.group_setup import GroupSetup, StateMachine
from region_broker.controller.raft.handing_over import HandingOver
from region_broker.controller.raft.needed_room import (
    SPARE_BYTES,
    has_command,
    log_bytes,
    volume_bytes,
)
from region_broker.controller.raft.snapshot_file import Piece

logger: Final = logging.getLogger(__name__)

INBOX_MAX: Final = 20_000
INBOX_BYTES_MAX: Final = 64 * 1024 * 1024
"""What messages may hold that wait: several times what a leader has on its way to one follower."""
TURN_EVENTS_MAX: Final = 512
TURN_BYTES_MAX: Final = 8 * 1024 * 1024
FULL_MS: Final = 1000
"""How long a disk that was full is not asked for room."""
SNAPSHOT_PIECE_BYTES: Final = 256 * 1024

_NO_ROOM: Final = "the disk of this member is full: nothing was appended"
_ROOM_DENIED: Final = (
    "Room that was taken there is denied (by a file system that writes each block to a new place). Make room, and start the"
    " node again."
)

Wish = Proposed | ReadAsked | MembershipAsked | TransferAsked


class Carrier:
    """One core's driver: `run` owns its tasks, the turns and what applies beside them."""

    def __init__(
        self,
        core: RaftCore,
        store: RaftStore,
        machine: StateMachine,
        setup: GroupSetup,
        on_role: Callable[[RoleChanged], None],
    ) -> None:
        """Begin with nothing."""
        self._core = core
        self._store = store
        self._setup = setup
        self._on_role = on_role
        self._inbox: deque[Event] = deque()
        self._inbox_bytes = 0
        self._wake = asyncio.Event()
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[LogIndex]] = {}
        self._applying = Applying(
            machine, core.commit_index, setup.snapshot_after_bytes, on_image=self._wake.set
        )
        self._tick_waits = False
        self._full_until_ms = 0
        self._handing_over = HandingOver(setup.settings.election_timeout_ms)
        self._has_begun = self._is_run = self._stopping = False
        self._is_outside = False
        self._ended_by: Exception | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def _is_alone(self) -> bool:
        return self._setup.transport is None

    @property
    def me(self) -> Member:
        """Return which member this is."""
        return self._core.me

    @property
    def term(self) -> Term:
        """Return the present term."""
        return self._core.term

    @property
    def membership(self) -> Membership:
        """Return the membership in force."""
        return self._core.membership

    @property
    def facts(self) -> GroupFacts:
        """Return what this member knows of its group now; one that has ended, for whatever reason, knows of no leader."""
        facts = self._core.facts
        return replace(facts, leader=None, followers={}) if self._stopping else facts

    # -- what comes in ---------------------------------------------------------------------------

    def receive(self, received: Received) -> None:
        """Take a message from the member that the connection proved."""
        if self._stopping or len(self._inbox) >= INBOX_MAX:  # INV-RK5
            return
        size_bytes = message_bytes(received.message)
        if self._inbox_bytes + size_bytes <= INBOX_BYTES_MAX:
            self._inbox_bytes += size_bytes
            self._submit(received)

    def tick(self) -> None:
        """Tell the core that time has passed."""
        if not self._tick_waits:
            self._tick_waits = True
            self._submit(Ticked())

    def lost(self, member: Member) -> None:
        """Tell the core that a connection with a member has ended."""
        if not self._stopping and len(self._inbox) < INBOX_MAX:  # INV-RK5
            self._submit(PeerLost(member))

    async def ask(self, wish: Callable[[int], Wish]) -> LogIndex:
        """Return what the wish, made of its ticket, came to.

        Raises NotLeader, Busy, Refused, RaftStoreFull: nothing was appended; Lost: nobody knows. Before `run`, what the store
        raises, too, and raised before.
        """
        if self._ended_by is not None and not self._is_run:
            raise self._ended_by
        if self._stopping:
            raise NotLeader(None)
        if len(self._inbox) >= INBOX_MAX:  # INV-RK5
            raise Busy(f"{INBOX_MAX} events wait")
        ticket = next(self._tickets)
        future: asyncio.Future[LogIndex] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            self._submit(wish(ticket))
            if self._has_begun and not self._is_run:
                await self._own_turns(future)
            return await future
        finally:
            self._waiting.pop(ticket, None)

    async def _own_turns(self, future: asyncio.Future[LogIndex]) -> None:
        """Carry out the wish that `future` waits for; what ends the turn behind its answer is for whoever asks next."""
        try:
            await self._turns()
        except BaseException as error:
            if not future.done():
                future.cancel()
            elif isinstance(error, RaftStoreError) and future.exception() is None:
                return
            raise  # the caller hears of what ended the turn, not that it ended

    def _submit(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    # -- the turns -------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start a core that is alone, before `run`: until then whoever asks carries out its wish itself.

        Raises RaftStoreFull: nothing has begun; what the store or the state machine raised: it has ended.
        """
        needed_bytes = log_bytes(Ticked(), self.membership)
        await self._make_room(needed_bytes)
        if not self._store.has_room(needed_bytes):
            raise RaftStoreFull(_NO_ROOM)
        self._has_begun = True
        async with self._whole():
            await self._carry(self._core.start(self._now_ms()))

    @asynccontextmanager
    async def _whole(self) -> AsyncIterator[None]:
        """One after the other, each to its end: what is given up in the middle ends this (INV-RK6)."""
        async with self._one_at_a_time:
            try:
                yield
            except BaseException as error:
                if isinstance(error, RaftStoreError):
                    self._ended_by = error
                self.end()
                raise

    async def run(self) -> None:
        """Drive the core until `stop`; raises what the store or the state machine raised."""
        if self._ended_by is not None:
            raise self._ended_by
        self._is_run = True
        try:
            if self._is_alone:
                await self._drive()
            else:
                await self._drive_and_apply()
        finally:
            self.end()

    async def _drive_and_apply(self) -> None:
        """Do both until one of them ends; raises what it raised first, as if there was no group of tasks."""
        failures: list[BaseException] = []

        async def both_end_with(work: Coroutine[Any, Any, None]) -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 -- raised below
                failures.append(error)
            finally:
                self.stop()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(both_end_with(self._applying.run()), name="quorum-applying")
            await both_end_with(self._drive())
        if failures:
            raise failures[0]

    async def _drive(self) -> None:
        if not self._has_begun:
            await self._room_to_start()
        if not self._has_begun and not self._stopping:
            async with self._whole():
                await self._carry(self._core.start(self._now_ms()))
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            await self._turns()

    async def _room_to_start(self) -> None:
        """Wait until there is room for what the core begins with, and refuse what comes meanwhile (INV-RK2)."""
        needed_bytes = log_bytes(Ticked(), self.membership)
        await self._make_room(needed_bytes)
        while not self._store.has_room(needed_bytes) and not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            while self._inbox:
                self._refuse(self._take_event(), RaftStoreFull(_NO_ROOM))
            await self._make_room(needed_bytes)

    def stop(self) -> None:
        """Let `run` end after its turn, and after what is being applied (INV-RAP5)."""
        self._stopping = True
        self._wake.set()
        self._applying.stop()

    async def finish(self) -> None:
        """Take nothing any more, and close the store behind the turn, and what is applied, that is under way (INV-RK6)."""
        self.stop()
        await self._applying.ended()
        async with self._one_at_a_time:
            self.end()

    def end(self) -> None:
        """Take nothing any more, and close the store; a second time changes nothing."""
        self._stopping = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Lost("the member has ended"))
        if (
            not self._is_outside
        ):  # cancelled while a thread is at work: the process ends, and closes its files
            self._store.close()

    async def _turns(self) -> None:
        while (self._inbox or self._applying.has_image) and not self._stopping:
            async with self._whole():
                await self._turn()

    async def _turn(self) -> None:
        """Take what has gathered, and carry out all that comes of it with one sync (INV-RK1)."""
        effects: list[Effect] = []
        for event in await self._admitted():
            effects += self._core.step(event, self._now_ms())
        await self._carry(effects)
        taken = self._applying.take_image()
        if taken is not None:
            await self._snapshot(taken)

    async def _admitted(self) -> list[Event]:
        """Take out what has gathered, as much as is one turn; return what there is room for (INV-RK2)."""
        gathered: list[tuple[Event, int]] = []
        wanted_bytes = 0
        while self._inbox and len(gathered) < TURN_EVENTS_MAX and wanted_bytes < TURN_BYTES_MAX:
            event = self._take_event()
            gathered.append((event, log_bytes(event, self._core.membership)))
            wanted_bytes += gathered[-1][1]
        await self._make_room(wanted_bytes + SPARE_BYTES)
        admitted: list[Event] = []
        taken_bytes = 0
        for event, needed_bytes in gathered:
            spare_bytes = SPARE_BYTES if has_command(event) else 0
            try:
                self._expect_room(event, taken_bytes + needed_bytes + spare_bytes)
            except RaftStoreFull as error:
                self._refuse(event, error)
                if spare_bytes:
                    admitted += self._hand_over()
            else:
                admitted.append(event)
                taken_bytes += needed_bytes
        return admitted

    def _hand_over(self) -> list[Event]:
        """Return what has another voter lead, where a command found no room here (INV-RHO1)."""
        successor = self._handing_over.successor(self._core.facts, self._now_ms())
        if successor is None:
            return []
        logger.warning("the disk of this member is full: %s is to lead the quorum", successor)
        ticket = next(self._tickets)
        self._handing_over.begun(ticket)
        return [TransferAsked(ticket, successor)]

    def _take_event(self) -> Event:
        event = self._inbox.popleft()
        if isinstance(event, Received):
            self._inbox_bytes -= message_bytes(event.message)
        self._tick_waits &= not isinstance(event, Ticked)
        return event

    async def _make_room(self, size_bytes: int) -> None:
        """Take room for that much, if it is there; where it was not, it is looked for again after a while."""
        if self._store.has_room(size_bytes) or self._now_ms() < self._full_until_ms:
            return
        was_full = self._full_until_ms > 0
        try:
            await self._outside(partial(self._store.make_room, size_bytes))
        except RaftStoreFull as error:
            self._full_until_ms = self._now_ms() + FULL_MS
            if not was_full:
                logger.warning("the disk of a member of the quorum is full: %s", error)
        else:
            self._full_until_ms = 0
            if was_full:
                logger.info("the disk of a member of the quorum has room again")

    def _expect_room(self, event: Event, log_bytes_wanted: int) -> None:
        """Raise RaftStoreFull if there is no room for an event."""
        if not self._store.has_room(log_bytes_wanted):
            raise RaftStoreFull(_NO_ROOM)
        if volume_bytes_wanted := volume_bytes(event):
            self._store.expect_room(volume_bytes_wanted)

    def _refuse(self, event: Event, reason: RaftStoreFull) -> None:
        match event:
            case Proposed() | ReadAsked() | MembershipAsked() | TransferAsked():
                self._settle(event.ticket, reason)
            case Received() | Ticked() | PeerLost() | Snapshotted():
                logger.debug("as if it had not happened: %s", reason)
            case _:
                assert_never(event)

    async def _outside(self, work: Callable[[], None]) -> None:
        """Let work wait for the disk in a thread, which goes on where this is cancelled."""

        def tracked() -> None:
            try:
                work()
            finally:
                self._is_outside = False

        self._is_outside = True
        await self._setup.offload(tracked)

    def _now_ms(self) -> int:
        return self._setup.clock.monotonic_ms()

    # -- effects ---------------------------------------------------------------------------------

    async def _carry(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order; what is to be persisted is gathered, and what stands behind it waits."""
        persists: list[Persist] = []
        behind: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Persist):
                persists.append(effect)
            elif isinstance(effect, KeepSnapshotPiece | DropLog):  # they change the log themselves
                await self._flush(persists, behind)
                await self._do(effect)
            elif persists:
                behind.append(effect)
            else:
                await self._do(effect)
        await self._flush(persists, behind)

    async def _flush(self, persists: list[Persist], behind: list[Effect]) -> None:
        if persists:
            try:
                await self._outside(partial(self._store.persist, tuple(persists)))
            except RaftStoreFull as error:  # room was taken, and nobody takes back what is decided
                raise RaftStoreFailed(f"{error}. {_ROOM_DENIED}") from error
        for effect in behind:
            await self._do(effect)
        persists.clear()
        behind.clear()

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Send(target, message):
                self._send(target, message)
            case SendSnapshot():
                await self._send_snapshot(effect)
            case KeepSnapshotPiece():
                await self._keep_piece(effect)
            case DropLog(up_to):
                await self._outside(partial(self._store.drop_log, up_to))
            case Committed(entries):
                await self._commit(entries)
            case Answered():
                self._answer(effect)
            case RoleChanged():
                self._on_role(effect)
            case Joining():
                self._setup.on_joining(effect)
            case Persist():
                raise AssertionError("INV-RK1: gathered before")
            case _:
                assert_never(effect)

    def _send(self, target: Member, message: Message) -> None:
        assert self._setup.transport is not None, "who is not alone has a transport"
        self._setup.transport.send(target, message)

    async def _send_snapshot(self, wanted: SendSnapshot) -> None:
        found: list[Piece] = []

        def read() -> None:
            found.append(self._store.read_piece(wanted.position, SNAPSHOT_PIECE_BYTES))

        await self._outside(read)
        point, position, data, last = found[0]
        self._send(wanted.target, SnapshotRequest(wanted.term, point, position, data, last))

    async def _keep_piece(self, wanted: KeepSnapshotPiece) -> None:
        piece = Piece(wanted.point, wanted.position, wanted.data, wanted.last)
        await self._outside(partial(self._store.keep_piece, piece))
        if not wanted.last:
            return
        images: list[bytes] = []
        await self._outside(lambda: images.append(self._store.image()))
        await self._applying.add_snapshot(wanted.point.index, images[0])

    async def _commit(self, entries: tuple[Entry, ...]) -> None:
        if any(entry.kind is EntryKind.COMMAND for entry in entries):
            self._handing_over.carried_out()
        await self._applying.add(entries)
        if self._is_alone:
            await self._applying.work_off()

    async def _snapshot(self, taken: ImageTaken) -> None:
        """Let the state machine's image take the place of the log; if it does not fit, after as much again."""
        point = self._core.point_at(taken.index)
        try:
            await self._outside(partial(self._store.keep_snapshot, point, taken.image))
        except RaftStoreFull as error:
            logger.warning("the quorum's log grows on: %s", error)
            return
        await self._carry(self._core.step(Snapshotted(point), self._now_ms()))

    # -- answers ---------------------------------------------------------------------------------

    def _answer(self, answer: Answered) -> None:
        self._handing_over.ended(answer.ticket, answer.outcome, self._now_ms())
        match answer.outcome:
            case Outcome.DONE:
                settle = partial(self._settle, answer.ticket, answer.index)
                self._applying.behind(settle)  # INV-RAP2
            case Outcome.NOT_LEADER:
                self._settle(answer.ticket, NotLeader(answer.leader))
            case Outcome.LOST:
                self._settle(answer.ticket, Lost(answer.outcome.value))
            case Outcome.BUSY:
                self._settle(answer.ticket, Busy(answer.outcome.value))
            case Outcome.REFUSED:
                self._settle(answer.ticket, Refused(answer.outcome.value))
            case _:
                assert_never(answer.outcome)

    def _settle(self, ticket: int, result: LogIndex | Exception) -> None:
        """Answer a caller, unless it is gone (INV-RK3)."""
        future = self._waiting.pop(ticket, None)
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
