"""Fetch (1), versions 4-18.  v5: log start.  v7: sessions.  v9: leader epoch.  v12: tags.  v13: topic ids.

v16: who leads now, beside FENCED_LEADER_EPOCH and NOT_LEADER_OR_FOLLOWER (KIP-951).
INV-H10 in a session an answer is given only while no later request of it came: else its epoch is wrong (KIP-227)
INV-FCH1 an error that sends a reader to the leader names that one, never this node while it follows (KIP-951)
INV-H11 a client that calls itself a replica gets nothing (CVE-2018-1288): links have their own port
What a quota leaves bounds what is read; beyond it the answer tells offsets only, at once, and for how long to wait.
While the memory budget is full nothing is read: the request waits for room, then is answered empty; else an answer
takes half of what is left at most.
A request that need not wait for memory, and names no more than a turn's partitions, has no task (`begin_fetch`).
A reader that says its rack may be sent to a follower, and be served by one (`dispatch.readers`).
On a mirror "the end" is what the last tidemark reached shows: `Sight.readable_end`.
Not here: looking, waiting and reading (`fetch.reading`), what a session remembers (`partitions.fetch_sessions`), bytes
(`wire.codec.fast_paths.fetch`).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from idempotency.pieces import Pieces, drained
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may_topic
from region_broker.handlers.dispatch.nodes import KnownNode
from region_broker.handlers.dispatch.partitions import (
    find_partition,
    isolation_of,
    nodes_of,
    nodes_told,
)
from region_broker.handlers.dispatch.registry import Api, Finish, Written
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.handlers.fetch.reading import Read, Reading
from region_broker.limits import (
    FETCH_PARTITION_COUNT_MAX,
    FETCH_WAIT_MS_MAX,
    PIECE_ELEMENTS,
    REQUEST_COST_MIN,
    ROW_COST,
    YIELD_ROWS,
)
from region_broker.log.failures import ColdRange
from region_broker.partitions.fetch_sessions import (
    FetchSession,
    PartitionKey,
    SessionError,
    SessionRequest,
    Told,
    Wanted,
    next_epoch,
    remember,
)
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.access import Operation
from region_broker.wire.codec.fast_paths.fetch import (
    KEY,
    NO_REPLICA,
    NO_SESSION,
    VERSIONS,
    AskedPartition,
    FetchAnswer,
    FetchedRow,
    FetchRequest,
    TopicKey,
    pieces_of_answer,
)
from region_broker.wire.codec.fast_paths.leaders import Endpoint
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding, run_yielding

_ERROR_OF: Final = {
    SessionError.NOT_FOUND: ErrorCode.fetch_session_id_not_found,
    SessionError.WRONG_EPOCH: ErrorCode.invalid_fetch_session_epoch,
    SessionError.TOPIC_IDS: ErrorCode.fetch_session_topic_id_error,
    SessionError.TOO_LARGE: ErrorCode.invalid_request,
}
assert set(_ERROR_OF) == set(SessionError)
_SESSIONS_SINCE: Final = 7
_BY_ID: Final = 13
_NAMES_LEADERS: Final = 16
_FENCED: Final = int(ErrorCode.fenced_leader_epoch)
_NAMING: Final = frozenset({_FENCED, int(ErrorCode.not_leader_or_follower)})


async def handle_fetch(ctx: RequestContext, request: FetchRequest) -> Written:
    """Serve a request that waits for memory first, or has many partitions."""
    fetching = await run_yielding(_entered(ctx, request))
    if isinstance(fetching, Written):
        return fetching
    memory, reading = ctx.services.memory, fetching.reading
    ctx.leave_large()
    if not memory.left_bytes and not await memory.wait_room(
        ctx.services.clock, reading.wait_ms_max
    ):
        return await fetching.written_in_turns()
    ended = asyncio.Event()
    try:
        await run_yielding(reading.begin(ended.set))
        await ended.wait()
    finally:
        reading.end()
    return await fetching.written_in_turns()


def begin_fetch(ctx: RequestContext, request: FetchRequest, finish: Finish) -> bool:
    """Answer at once, or when `bytes_min` are there, at the latest after `wait_ms_max`; False if that needs a task."""
    if not ctx.services.memory.left_bytes or _wanted_count(ctx, request) > YIELD_ROWS:
        return False
    fetching = drained(_entered(ctx, request))
    if isinstance(fetching, Written):
        finish(fetching)
    else:
        fetching.begin(finish)
    return True


def _wanted_count(ctx: RequestContext, request: FetchRequest) -> int:
    """Return how many partitions a request may have to look at."""
    count = sum([len(partitions) for _, partitions in request.topics])
    isolation = isolation_of(request.isolation_level)
    if request.session_id != NO_SESSION and isolation is not None:
        count += ctx.services.fetch_sessions.dirty_count(request.session_id, isolation)
    return count


class Fetching:
    """One request that was let in, until it is answered."""

    __slots__ = ("_asked", "_ctx", "_finish", "_session", "reading")

    def __init__(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        asked: SessionRequest,
        session: FetchSession | None,
    ) -> None:
        self._ctx = ctx
        self._asked = asked
        self._session = session
        self._finish: Finish | None = None
        wait_ms_max = min(request.wait_ms_max, FETCH_WAIT_MS_MAX)
        bytes_max, meter = request.bytes_max, ctx.meter
        if meter is not None:
            bytes_max = meter.fetch_room(bytes_max)
        self.reading = Reading(
            ctx.services, session or asked.wanted, asked.isolation,
            bytes_min=request.bytes_min, bytes_max=bytes_max, wait_ms_max=wait_ms_max,
            identity=ctx.identity, peer=ctx.peer, rack=request.rack, met_at=ctx.connection_state.met_at,
        )  # fmt: skip
        if meter is not None and meter.is_over:
            self.reading.tell_only()

    def begin(self, finish: Finish) -> None:
        """Wait without a task, then answer."""
        self._finish = finish
        self._ctx.waiting[self] = None
        drained(self.reading.begin(self._over))

    def _over(self) -> None:
        if self._finish is not None:  # else given up while something was read in
            self._step(self._written())

    def _step(self, pieces: Pieces[Written | ColdRange]) -> None:
        """Read and write one piece, and the next one in a later turn of the loop (INV-FRD5, INV-FRD7)."""
        loop = asyncio.get_running_loop()
        if self._finish is None:
            pieces.close()
            return
        meter = self._ctx.meter
        if meter is not None:
            meter.start(loop.time())
        written: Written | ColdRange | Exception | None = None
        try:
            next(pieces)
        except StopIteration as done:
            written = done.value
        except Exception as error:  # noqa: BLE001 - whoever sent it is told, and closes its connection
            written = error
        if written is not None and not isinstance(written, ColdRange):
            self._answer(written)
            return
        if meter is not None:
            meter.stop(loop.time())
        if written is None:
            turns = self._ctx.services.deadlines.turns
            turns.spend(REQUEST_COST_MIN)
            turns.later(self.reading.asked_by, partial(self._step, pieces))
        else:
            self._ctx.services.partitions.cold_reads.begin(written, self._over)

    def give_up(self) -> None:
        """See `Waiting`."""
        self.reading.end()
        self._answer(None)

    def _answer(self, written: Written | Exception | None) -> None:
        self._ctx.waiting.pop(self, None)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(written)

    async def written_in_turns(self) -> Written:
        """Read, and write the answer, in turns of who asks (INV-FRD7)."""
        await self._its_turn()
        while isinstance(written := await run_yielding(self._written(), self._its_turn), ColdRange):
            read_in = asyncio.Event()
            self._ctx.services.partitions.cold_reads.begin(written, read_in.set)
            await read_in.wait()
            await self._its_turn()
        return written

    async def _its_turn(self) -> None:
        turns, who = self._ctx.services.deadlines.turns, self.reading.asked_by
        begun = asyncio.Event()

        def begin() -> None:
            turns.spend(ROW_COST * YIELD_ROWS)  # what it reads is known behind the turn
            begun.set()

        turns.later(who, begin)
        try:
            await begun.wait()
        finally:
            turns.withdraw(who, begin)

    def _written(self) -> Pieces[Written | ColdRange]:
        try:
            return (yield from self._read_and_written())
        finally:
            self.reading.let_go()  # what is answered counts as the connection's

    def _read_and_written(self) -> Pieces[Written | ColdRange]:
        found = [] if self._is_late() else (yield from self.reading.read())
        if isinstance(found, ColdRange):
            return found
        if self._is_late():
            return (yield from self._refused_late())
        told, session_id = yield from self._told(found)
        ctx = self._ctx
        answer = _answer_of(ctx, session_id, told)
        names = [ErrorCode(row.error_code).name for _, row in told if row.error_code]
        if TOPIC_DENIED.name in names:
            yield from _tell_denied(ctx, told)
        raw = yield from pieces_of_answer(ctx.version, ctx.correlation_id, answer)
        return (yield from self._refused_late()) if self._is_late() else Written(raw, names)

    def _refused_late(self) -> Pieces[Written]:
        assert self._session is not None
        error = ErrorCode.invalid_fetch_session_epoch
        answer = FetchAnswer(int(error), self._session.session_id)
        return (yield from _written(self._ctx, answer, (error.name,)))

    def _is_late(self) -> bool:
        """Return whether a later request of its session came (INV-H10)."""
        session = self._session
        return session is not None and session.expected_epoch != next_epoch(self._asked.epoch)

    def _told(self, found: Sequence[Read]) -> Pieces[tuple[Sequence[Read], int]]:
        """Return what the answer tells, and the session's id; the session remembers it."""
        session, sessions = self._session, self._ctx.services.fetch_sessions
        if session is not None:
            news = [pair for pair in found if session.must_tell(pair.item, _facts(pair.row))]
            for piece in self._note_quiet(found):
                yield piece
                if self._is_late():
                    break  # INV-H10; what is quiet for this one's isolation need not be so for the later one's
            return news, session.session_id
        if not self._asked.opens_session:
            return found, NO_SESSION
        for done, (item, row) in enumerate(found, 1):
            remember(item, _facts(row))
            if done % PIECE_ELEMENTS == 0:
                yield
        session_id = sessions.begin(self._asked, self._ctx.services.clock.monotonic_ms())
        yield from self._note_quiet(found)
        return found, session_id

    def _note_quiet(self, found: Sequence[Read]) -> Pieces[None]:
        """Note which partitions need not be looked at until they change (INV-FE6)."""
        for done, read in enumerate(found, 1):
            session = read.item.session
            if session is not None and (partition := self.reading.holds(read)):
                session.note_quiet(read.item, partition)
            if done % YIELD_ROWS == 0:
                yield


def _facts(row: FetchedRow) -> Told:
    return Told(
        row.high_watermark, row.last_stable_offset, row.log_start_offset,
        bool(row.records) or row.preferred != NO_REPLICA, row.error_code != 0,
    )  # fmt: skip


# --- who is let in ---------------------------------------------------------------------------------


def _entered(ctx: RequestContext, request: FetchRequest) -> Pieces[Fetching | Written]:
    """Let a request in, or return its refusal."""
    isolation = isolation_of(request.isolation_level)
    if isolation is None or not _may_ask(request):
        return (yield from _refused(ctx, request, ErrorCode.invalid_request))
    asked = yield from _session_request(ctx, request, isolation)
    session = ctx.services.fetch_sessions.enter(asked, ctx.services.clock.monotonic_ms())
    if isinstance(session, SessionError):
        return (yield from _refused(ctx, request, _ERROR_OF[session]))
    return Fetching(ctx, request, asked, session)


def _may_ask(request: FetchRequest) -> bool:
    named = sum([len(partitions) for _, partitions in request.topics])
    forgotten = sum([len(numbers) for _, numbers in request.forgotten])
    return request.replica_id < 0 and max(named, forgotten) <= FETCH_PARTITION_COUNT_MAX


def _session_request(
    ctx: RequestContext, request: FetchRequest, isolation: Isolation
) -> Pieces[SessionRequest]:
    wanted: dict[PartitionKey, Wanted] = {}
    for key, partitions in request.topics:
        for item in partitions:
            wanted[key, item.partition] = Wanted(key, *item)
            if len(wanted) % PIECE_ELEMENTS == 0:
                yield
    return SessionRequest(
        session_id=request.session_id,
        epoch=request.session_epoch,
        by_id=ctx.version >= _BY_ID,
        wanted=tuple(wanted.values()),
        forgotten=[(key, index) for key, numbers in request.forgotten for index in numbers],
        isolation=isolation,
        owner=ctx.identity.principal,
    )


# --- the answer ------------------------------------------------------------------------------------


def _refused(ctx: RequestContext, request: FetchRequest, error: ErrorCode) -> Pieces[Written]:
    """Return one error for all: at the top from v7 on, at each partition before."""
    topics: list[tuple[TopicKey, list[FetchedRow]]] = []
    yielding = CooperativeYield(PIECE_ELEMENTS)
    for key, partitions in request.topics if ctx.version < _SESSIONS_SINCE else ():
        rows: list[FetchedRow] = []
        topics.append((key, rows))
        if yielding.due():
            yield
        for item in partitions:
            rows.append(FetchedRow(item.partition, int(error)))
            if yielding.due():
                yield
    answer = FetchAnswer(int(error), NO_SESSION, topics)
    return (yield from _written(ctx, answer, (error.name,)))


async def _not_here(ctx: RequestContext, request: FetchRequest, error_code: int) -> Written:
    """Answer all partitions alike, and say who leads (KIP-951).

    A session cannot go on: it names what changes only. Who has one is to begin anew, with all of its partitions.
    """
    if request.session_id != NO_SESSION and request.session_epoch > 0:
        gone = ErrorCode.fetch_session_id_not_found
        return await run_yielding(_refused(ctx, request, gone))
    if not _may_ask(request):
        return await run_yielding(_refused(ctx, request, ErrorCode.invalid_request))
    yielding, endpoints = CooperativeYield(), dict[int, Endpoint]()
    named = (key for key, _ in request.topics)
    nodes_of = await nodes_told(ctx, named, yielding) if ctx.version >= _NAMES_LEADERS else None

    def row(key: TopicKey, item: AskedPartition) -> FetchedRow:
        nodes = None if nodes_of is None else nodes_of(key, item.partition)
        if nodes is None or nodes.leader is None or nodes.leader_epoch is None:
            return FetchedRow(item.partition, error_code)
        leader = endpoints[nodes.leader.node_id] = _endpoint(nodes.leader)
        return FetchedRow(item.partition, error_code, leader=(leader.node_id, nodes.leader_epoch))

    topics: list[tuple[TopicKey, list[FetchedRow]]] = []
    for key, partitions in request.topics:
        await yielding.row()
        topics.append((key, await each_yielding(partitions, partial(row, key), yielding)))
    answer = FetchAnswer(0, NO_SESSION, topics, tuple(endpoints.values()))
    return await run_yielding(_written(ctx, answer, (ErrorCode(error_code).name,)))


def _serves_copies(services: Services, request: FetchRequest) -> bool:
    """Return whether this node, which does not lead, serves the reader (INV-HRD2)."""
    return services.serves_copies(request.rack)


def _written(ctx: RequestContext, answer: FetchAnswer, names: Sequence[str]) -> Pieces[Written]:
    raw = yield from pieces_of_answer(ctx.version, ctx.correlation_id, answer)
    return Written(raw, names)


def _answer_of(ctx: RequestContext, session_id: int, found: Sequence[Read]) -> FetchAnswer:
    topics: list[tuple[TopicKey, list[FetchedRow]]] = []
    endpoints: dict[int, Endpoint] = {}
    for item, row in found:
        if not topics or topics[-1][0] != item.topic:
            topics.append((item.topic, []))
        told = row
        if row.error_code in _NAMING and ctx.version >= _NAMES_LEADERS:
            told, named = _with_leader(ctx, item, row)
            if named is not None:
                endpoints[named.node_id] = named
        topics[-1][1].append(told)
    return FetchAnswer(0, session_id, topics, tuple(endpoints.values()))


def _tell_denied(ctx: RequestContext, told: Sequence[Read]) -> Pieces[None]:
    """Tell whoever hears of refusals, once for each topic of the answer."""
    denied = (item.topic for item, row in told if row.error_code == TOPIC_DENIED)
    for done, topic in enumerate(dict.fromkeys(denied), 1):
        may_topic(ctx, Operation.READ, topic)
        if done % YIELD_ROWS == 0:
            yield


def _endpoint(node: KnownNode) -> Endpoint:
    return Endpoint(node.node_id, node.kafka_host, node.kafka_port)


def _with_leader(
    ctx: RequestContext, item: Wanted, row: FetchedRow
) -> tuple[FetchedRow, Endpoint | None]:
    """Return a row with who leads, and where that one is, as far as this node knows (INV-FCH1)."""
    nodes = nodes_of(ctx, item.topic, item.index)
    if nodes.leads and row.error_code != _FENCED:
        return row, None  # what this node leads, and shows nobody yet
    if nodes.leader is None:
        return row, None
    leader_epoch = nodes.epoch_to_tell(_leader_epoch(ctx, item))
    named = _endpoint(nodes.leader)
    return row._replace(leader=(named.node_id, leader_epoch)), named


def _leader_epoch(ctx: RequestContext, item: Wanted) -> LeaderEpoch:
    partition = find_partition(ctx.services, item.topic, item.index)
    return partition.sight.leader_epoch if isinstance(partition, Partition) else NO_LEADER_EPOCH


API: Final = Api(
    KEY,
    "Fetch",
    VERSIONS,
    handle_fetch,
    waits=True,
    begin=begin_fetch,
    not_here=_not_here,
    at_followers=_serves_copies,
)
