"""What is committed on its way into the state machine: a line in front of it, which a task of its own works off beside the turns.

INV-RAP1  the state machine is given one lot after the other, in the order of the log, and a leader's snapshot in its place among them
          (INV-RK4); turns go on meanwhile, however long it takes one: the member hears, answers, votes and leads
          1. A topic of 1,000 partitions is made, and each node lays out its logs for seconds before it is in the image. 2. No member's
          turn ended: no heartbeat was sent or answered. 3. The node that leads the region's logs died, or was taken for silent, and those
          that should have agreed on another one stood still one behind the other.
INV-RAP2  what is answered because of an entry, or for a read, is answered once all is applied that was committed before the answer, in the
          very step in which the last of that is (INV-RK3)
INV-RAP3  a snapshot is of what was applied whole: the state machine's image is taken between two lots, and none while a leader's snapshot
          waits for its turn, which is newer
INV-RAP4  what waits is bounded (`WAITING_BYTES_MAX`): a turn that commits more waits for room, as all turns once did
INV-RAP5  whoever stops it lets the lot that is under way end; what waits behind it is in the log, and comes with the next start. One that
          was cancelled, or failed, is gone on with by nobody (INV-RK6)
INV-RAP6  lots that wait one behind the other are given as one, up to `LOT_ENTRIES_MAX`: each may cost the state machine a sync of its disk,
          and who has more to apply than others falls behind no further
          1. A node's disk was slow, and what two others asked of the quorum again and again came as an entry each. 2. It applied them one by
          one, more slowly than they came. 3. It heard that it leads the region's logs when the election was minutes old, and void.

A member that is alone has nobody to hear, and works its line off within the turn. Not here: what a lot does (the state machine), when turns
are (`carrying`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from region_broker.controller.raft.entries import Entry, LogIndex
from region_broker.controller.raft.group_setup import StateMachine
from region_broker.controller.raft.needed_room import entries_bytes

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most of it is in the log's memory, too, until a snapshot has taken its place."""
LOT_ENTRIES_MAX: Final = 64
"""What waits is put together up to so many: the state machine takes a lot in one step of the loop."""


@dataclass(frozen=True, slots=True)
class _Lot:
    entries: Sequence[Entry]
    size_bytes: int
    answers: Sequence[Callable[[], None]] = ()
    """Of who waits for these, or for some of them."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Of a leader, durable here."""

    index: LogIndex
    image: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.image)


@dataclass(frozen=True, slots=True)
class _Answer:
    settle: Callable[[], None]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ImageTaken:
    """The state machine's image behind the entry `index`, for a snapshot of this member."""

    index: LogIndex
    image: bytes


class Applying:
    """The line of one member; `run` or `work_off` applies what is in it."""

    def __init__(
        self, machine: StateMachine, applied_index: LogIndex, image_after_bytes: int,
        on_image: Callable[[], None],
    ) -> None:  # fmt: skip
        """Nothing waits, and all up to `applied_index` is applied. `on_image`: called by `run` once it
        has taken an image, after so many bytes of entries.
        """
        self._machine = machine
        self._applied_index = applied_index
        self._image_after_bytes = image_after_bytes
        self._on_image = on_image
        self._line: deque[_Lot | _Snapshot | _Answer] = deque()
        self._waiting_bytes = 0
        self._snapshots_waiting = 0
        self._applied_bytes = 0
        self._image: ImageTaken | None = None
        self._is_whole = True
        """Whether nothing is under way; it stays False behind what was cancelled, or failed."""
        self._one_at_a_time = asyncio.Lock()
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._stopping = False

    # -- what comes in ---------------------------------------------------------------------------

    async def add(self, entries: Sequence[Entry]) -> None:
        """Let them be applied behind all that waits; returns once there is room for them to wait (INV-RAP4)."""
        await self._room()
        self._put(_Lot(entries, entries_bytes(entries)))

    async def add_snapshot(self, index: LogIndex, image: bytes) -> None:
        """Let a leader's snapshot of what came up to `index`, which is durable here, be loaded behind all that waits."""
        self._image = None  # INV-RAP3
        self._snapshots_waiting += 1
        await self._room()
        self._put(_Snapshot(index, image))

    def behind(self, settle: Callable[[], None]) -> None:
        """Call `settle` as soon as all is applied that waits now (INV-RAP2)."""
        if self._is_whole and not self._line:
            settle()
        else:
            self._put(_Answer(settle))

    def _put(self, waiting: _Lot | _Snapshot | _Answer) -> None:
        self._line.append(waiting)
        self._waiting_bytes += waiting.size_bytes
        self._wake.set()

    async def _room(self) -> None:
        while self._waiting_bytes >= WAITING_BYTES_MAX and not self._stopping:
            self._has_room.clear()
            await self._has_room.wait()

    # -- what goes on ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply what comes until `stop`, but for answers to what is done (INV-RAP5); raises what the state machine raised."""
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            async with self._one_at_a_time:
                while self._line and self._goes_on():
                    await self._next()
                    if self._is_image_due:
                        self._image = self._taken()
                        self._on_image()

    def _goes_on(self) -> bool:
        return not self._stopping or isinstance(self._line[0], _Answer)

    async def work_off(self) -> None:
        """Apply all that waits; raises what the state machine raised."""
        async with self._one_at_a_time:
            while self._line and self._is_whole:
                await self._next()

    async def _next(self) -> None:
        waiting = self._popped()
        self._is_whole = False
        await self._do(waiting)
        self._is_whole = True
        self._waiting_bytes -= waiting.size_bytes
        self._has_room.set()

    def _popped(self) -> _Lot | _Snapshot | _Answer:
        """Take out what is next; behind a lot all that goes on with it (INV-RAP6)."""
        first = self._line.popleft()
        if not isinstance(first, _Lot):
            return first
        entries, size_bytes, answers = list(first.entries), first.size_bytes, list(first.answers)
        while self._line and not isinstance(next_one := self._line[0], _Snapshot):
            if isinstance(next_one, _Answer):
                answers.append(next_one.settle)
            elif len(entries) + len(next_one.entries) <= LOT_ENTRIES_MAX:
                entries += next_one.entries
            else:
                break
            size_bytes += self._line.popleft().size_bytes
        return _Lot(entries, size_bytes, answers)

    async def _do(self, waiting: _Lot | _Snapshot | _Answer) -> None:
        match waiting:
            case _Lot(entries, size_bytes, answers):
                # INV-RK4: each once, in order
                assert entries[0].index == self._applied_index + 1, (
                    entries[0],
                    self._applied_index,
                )
                await self._machine.apply(entries)
                self._applied_index = entries[-1].index
                self._applied_bytes += size_bytes
                for settle in answers:
                    settle()
            case _Snapshot(index, image):
                self._machine.load(image)
                self._snapshots_waiting -= 1
                self._applied_index, self._applied_bytes = index, 0
            case _Answer(settle):
                settle()
            case _:
                assert_never(waiting)

    # -- snapshots of this member ----------------------------------------------------------------

    @property
    def _is_image_due(self) -> bool:
        """Return whether so much was applied, and no newer snapshot waits (INV-RAP3)."""
        return self._applied_bytes >= self._image_after_bytes and not self._snapshots_waiting

    def _taken(self) -> ImageTaken:
        self._applied_bytes = 0
        return ImageTaken(self._applied_index, self._machine.image())

    @property
    def has_image(self) -> bool:
        """Return whether an image was taken that `take_image` returns."""
        return self._image is not None

    def take_image(self) -> ImageTaken | None:
        """Return the image that a snapshot is due of, once; None where none is."""
        taken, self._image = self._image, None
        if taken is None and self._is_whole and self._is_image_due:
            taken = self._taken()
        return taken

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let `run` end behind what is under way, and nobody wait for room."""
        self._stopping = True
        self._wake.set()
        self._has_room.set()

    async def ended(self) -> None:
        """Return once nothing is under way."""
        async with self._one_at_a_time:
            return
