"""Fetch sessions (KIP-227): what a client reads, remembered, so that requests and answers name only what changed.

INV-FE1  an incremental answer leaves a partition out only if it has no data, no error, and the ends and the log start
         that its reader was told last, or if the next one looks at it first
INV-FE2  a partition that had an error is told again once the error is gone
INV-FE3  a session is used in steps: the epoch of a request is the one after its predecessor's, or it is refused; so an
         answer that got lost is noticed, and the client begins anew
INV-FE4  sessions and what they remember are bounded (`limits`): at the bound a stale session gives way, or a smaller one
         that is not new; else the client goes on without a session
INV-FE5  a partition that brought data or an error moves behind the others, so that none starves where a request's
         bytes run out
INV-FE6  a partition that has not changed since all of it was told is not looked at: it is watched, and a request costs
         what has changed, whatever a session's size
INV-FE7  a session that ends watches nothing, and its waiting request is answered
INV-FE8  a session is its owner's: for anybody else it is not there, and nobody else ends it. Its id is a number that can be guessed,
         and what it remembers names topics

Source: Kafka FetchSession, FetchMetadata. Times are monotonic ms.
Not here: reading (`handlers.fetch.fetch`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from idempotency.identity import LeaderEpoch
from idempotency.ports import Chance
from region_broker.limits import (
    FETCH_PARTITION_COUNT_MAX,
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSION_STALE_MS,
    FETCH_SESSIONS_MAX,
)
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.identity import ANONYMOUS_PRINCIPAL
from region_broker.wire.codec.fast_paths.fetch import FINAL_EPOCH, NO_SESSION, TopicKey

PartitionKey: TypeAlias = tuple[TopicKey, int]

INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_ID_BITS: Final = 31
_UNTOLD: Final = -1


class SessionError(Enum):
    """Why a request cannot go on in its session."""

    NOT_FOUND = auto()
    WRONG_EPOCH = auto()
    TOPIC_IDS = auto()
    """It was opened with topic ids and goes on with names, or the other way round."""
    TOO_LARGE = auto()


@dataclass(slots=True, eq=False)
class Wanted:
    """One partition that a client reads, and what it was told last (-1: nothing).

    `session`: that remembers it. While `quiet_in` is a partition, all that it has was told, and it is watched.
    `shows_as_before`: its role has not changed while it was quiet (INV-PU1).
    """

    topic: TopicKey
    index: int
    leader_epoch: LeaderEpoch
    offset: int
    max_bytes: int
    high_watermark: int = _UNTOLD
    last_stable_offset: int = _UNTOLD
    log_start_offset: int = _UNTOLD
    quiet_in: Partition | None = None
    showed: bool = False
    shows_as_before: bool = True
    session: "FetchSession | None" = None

    @property
    def key(self) -> PartitionKey:
        """Return what the partition is known by in its session."""
        return self.topic, self.index

    def changed(self) -> None:
        """See `Watcher`: look at it again (INV-FE6)."""
        session = self.session
        if self.wake() and session is not None and session.on_dirty is not None:
            session.on_dirty(self)

    def wake(self) -> bool:
        """Watch no more; return whether it was quiet."""
        partition = self.quiet_in
        if partition is None:
            return False
        self.quiet_in = None
        self.shows_as_before = partition.sight.shows_committed == self.showed
        partition.watchers.unwatch(self)
        if self.session is not None:
            self.session.dirty[self.key] = self
        return True


class Told(NamedTuple):
    """What an answer says of one partition; an error comes with -1 for all ends."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    has_data: bool
    failed: bool


@dataclass(slots=True)
class FetchSession:
    """One client's session; `expected_epoch` is that of its next request.

    `dirty`: the dirty partitions, which are not quiet, in the order in which it is looked at. `on_dirty` is told of
    what ceases to be quiet, `on_over` that nothing more will be told: of the one request that waits.
    """

    session_id: int
    by_id: bool
    created_ms: int
    used_ms: int
    expected_epoch: int = 1
    wanted: dict[PartitionKey, Wanted] = field(default_factory=dict)
    dirty: dict[PartitionKey, Wanted] = field(default_factory=dict)
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    owner: str = ANONYMOUS_PRINCIPAL
    counted: int = 0
    ended: bool = False
    on_dirty: Callable[[Wanted], None] | None = None
    on_over: Callable[[], None] | None = None

    def take_in(self, item: Wanted) -> None:
        """Remember a partition that is new here."""
        item.session = self
        self.wanted[item.key] = self.dirty[item.key] = item

    def step(self, wanted: Iterable[Wanted], forgotten: Iterable[PartitionKey]) -> None:
        """Take in what a request adds, changes and forgets; one that still waits is over (INV-FE3)."""
        self.expected_epoch = next_epoch(self.expected_epoch)
        self.end_wait()
        for item in wanted:
            known = self.wanted.get(item.key)
            if known is None:
                self.take_in(item)
            else:
                known.wake()
                known.leader_epoch = item.leader_epoch
                known.offset = item.offset
                known.max_bytes = item.max_bytes
        for key in forgotten:
            gone = self.wanted.pop(key, None)
            if gone is not None:
                gone.wake()
                del self.dirty[key]

    def wait(self, on_dirty: Callable[[Wanted], None], on_over: Callable[[], None]) -> None:
        """Tell a request that waits what ceases to be quiet, and when it need not wait any longer."""
        self.on_dirty, self.on_over = on_dirty, on_over

    def wait_no_more(self, on_over: Callable[[], None]) -> None:
        """Tell it nothing more, if it is the one that waits."""
        if self.on_over == on_over:
            self.on_dirty = self.on_over = None

    def end_wait(self) -> None:
        """Let the request that waits be answered now."""
        on_over, self.on_dirty, self.on_over = self.on_over, None, None
        if on_over is not None:
            on_over()

    def look_as(self, isolation: Isolation) -> None:
        """Read so from now on: what is quiet for one isolation need not be so for another."""
        if isolation is not self.isolation:
            self.isolation = isolation
            self.wake_all()

    def end(self) -> None:
        """Watch nothing any more (INV-FE7)."""
        self.ended = True
        self.end_wait()
        self.wake_all()

    def wake_all(self) -> None:
        """Let nothing be quiet."""
        for item in self.wanted.values():
            item.wake()

    def note_quiet(self, item: Wanted, partition: Partition) -> None:
        """Note that all there is was told, and nothing can be read, until the partition changes (INV-FE6)."""
        if not self.ended and self.dirty.get(item.key) is item:
            # Another of that key is a partition that was forgotten and added anew: it stays (INV-FE6).
            del self.dirty[item.key]
            item.quiet_in, item.showed = partition, partition.sight.shows_committed
            partition.watchers.watch(item)

    def must_tell(self, item: Wanted, told: Told) -> bool:
        """Return whether an answer has to name the partition; remember what it says (INV-FE1, INV-FE2)."""
        news = told.failed or told.has_data or not _same(item, told)
        remember(item, told)
        if (told.has_data or told.failed) and self.dirty.get(item.key) is item:
            del self.dirty[item.key]
            self.dirty[item.key] = item
        return news


def _same(item: Wanted, told: Told) -> bool:
    return (item.high_watermark, item.last_stable_offset, item.log_start_offset) == (
        told.high_watermark,
        told.last_stable_offset,
        told.log_start_offset,
    )


def remember(item: Wanted, told: Told) -> None:
    """Note what a client was told of a partition: no ends beside an error, so what comes after it is news."""
    item.high_watermark = told.high_watermark
    item.last_stable_offset = told.last_stable_offset
    item.log_start_offset = told.log_start_offset


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next request; 0 and below mean something else, so it goes round to 1."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session part of a Fetch, and what it wants and forgets; `owner`: who asks."""

    session_id: int
    epoch: int
    by_id: bool
    wanted: Sequence[Wanted]
    forgotten: Sequence[PartitionKey] = ()
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    owner: str = ANONYMOUS_PRINCIPAL

    @property
    def is_full(self) -> bool:
        """Return whether it names everything that it wants."""
        return self.epoch in (INITIAL_EPOCH, FINAL_EPOCH)

    @property
    def opens_session(self) -> bool:
        """Return whether it asks for a session to be opened."""
        return self.epoch == INITIAL_EPOCH


class FetchSessions:
    """All sessions of one node."""

    def __init__(self, chance: Chance) -> None:
        """Begin without any."""
        self._chance = chance
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self._partition_count = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Return how many partitions they remember altogether."""
        return self._partition_count

    def dirty_count(self, session_id: int, isolation: Isolation) -> int:
        """Return how many partitions a request in a session looks at, 0 if there is no such session."""
        session = self._sessions.get(session_id)
        if session is None:
            return 0
        return len(session.dirty if session.isolation is isolation else session.wanted)

    def enter(self, request: SessionRequest, now_ms: int) -> FetchSession | SessionError | None:
        """Return the session that `request` goes on in, None if it stands alone, or why it cannot.

        A full request ends the session that it names. One that leaves its session empty ends it.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != request.owner:  # INV-FE8
            session = None
        if request.is_full:
            if session is not None:
                self._remove(session.session_id)
            return None
        if session is None:
            return SessionError.NOT_FOUND
        if session.expected_epoch != request.epoch:
            return SessionError.WRONG_EPOCH
        if session.by_id != request.by_id:
            return SessionError.TOPIC_IDS
        session.step(request.wanted, request.forgotten)
        session.look_as(request.isolation)
        if not session.wanted:
            self._remove(session.session_id)
            return None
        if len(session.wanted) > FETCH_PARTITION_COUNT_MAX:
            self._remove(session.session_id)
            return SessionError.TOO_LARGE
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        self._count(session)
        if self._partition_count > FETCH_SESSION_PARTITIONS_MAX:
            # Still served this time; its next request is told to begin anew.
            self._evict(session)
        return session

    def begin(self, request: SessionRequest, now_ms: int) -> int:
        """Open a session for what a full request wanted (`remember` says what it is told); return its id.

        Where there is no room, 0.
        """
        if not request.opens_session or not request.wanted:
            return NO_SESSION
        if not self._make_room(len(request.wanted), now_ms):
            return NO_SESSION
        session_id = self._chance.randbits(_ID_BITS)
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._chance.randbits(_ID_BITS)
        session = FetchSession(
            session_id, request.by_id, now_ms, now_ms,
            isolation=request.isolation, owner=request.owner,
        )  # fmt: skip
        for item in request.wanted:
            session.take_in(item)
        self._sessions[session_id] = session
        self._count(session)
        return session_id

    def _make_room(self, size: int, now_ms: int) -> bool:
        if size > FETCH_SESSION_PARTITIONS_MAX:
            return False
        while (
            len(self._sessions) >= FETCH_SESSIONS_MAX
            or self._partition_count + size > FETCH_SESSION_PARTITIONS_MAX
        ):
            victim = self._evictable(size, now_ms)
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _evictable(self, size: int, now_ms: int) -> FetchSession | None:
        """Return a session that gives way to one of `size` partitions (INV-FE4)."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if now_ms - oldest.used_ms > FETCH_SESSION_STALE_MS:
            return oldest
        smaller = (
            session
            for session in self._sessions.values()
            if session.counted < size and now_ms - session.created_ms > FETCH_SESSION_STALE_MS
        )
        return min(smaller, key=lambda session: session.counted, default=None)

    def _evict(self, session: FetchSession) -> None:
        self.evicted_count += 1
        self._remove(session.session_id)

    def _count(self, session: FetchSession) -> None:
        self._partition_count += len(session.wanted) - session.counted
        session.counted = len(session.wanted)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= session.counted
            session.end()
