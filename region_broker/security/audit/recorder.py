"""The trail of a node: gathers what it is told, and writes it in groups, off the loop.

INV-ARC1  while a group is written the next one gathers; who waits for an intent goes on when its group is durable, or is refused
INV-ARC2  what nobody waits for is bounded: `FLOOD_KINDS_MAX` different refusals and logins a second, `QUEUE_MAX` events in all, and
          neither refusals nor logins once the files have `bytes_max`; what is beyond is counted by kind, and the count is the next record
          that is written
INV-ARC5  whoever floods the trail hides nobody else by it: of those FLOOD_KINDS_MAX one host has FLOOD_OF_ONE_MAX, and right logins have as many
          of their own, which no refusal takes, and of which one user has FLOOD_OF_ONE_MAX. So who comes in by a password that was guessed at last
          is recorded, also where somebody else logs in rightly from a thousand addresses meanwhile
INV-ARC6  of what one principal intends some DETAIL_CHARS_MAX of details a second are room for more: who asks before telling (`has_room_for_details`) is
          told no then. What changes the metadata does not ask, and is told in full
INV-ARC4  an intent that was recorded has an outcome: whoever is cancelled while he waits for it does nothing, and the trail says so
INV-ARC3  outcomes of what was intended have a place of their own: there are no more of them than intents that were written
What is told within the last second before a crash, and nobody waited for, is lost with the process, uncounted (docs/reference/audit.md).
Not here: the bytes and the disk (`chain_files`).
"""

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from idempotency.ports import Clock
from region_broker.ports.addresses import network_of
from region_broker.ports.offload import Offload
from region_broker.security.audit.chain import Head, written_chars
from region_broker.security.audit.chain_files import ChainFiles, trail_fields
from region_broker.security.audit.events import (
    DETAIL_CHARS_MAX,
    LEFT_OUT,
    Actor,
    AuditEvent,
    Detail,
    Kind,
    Outcome,
    clipped,
)
from region_broker.security.audit.trail import AuditTrail, AuditUnwritable

_log: Final = logging.getLogger("tidemark.audit")

QUEUE_MAX: Final = 5_000
FLOOD_KINDS_MAX: Final = 200
FLOOD_OF_ONE_MAX: Final = FLOOD_KINDS_MAX // 2
FLOOD_MS: Final = 1_000
DETAILS_MS: Final = 1_000
GROUP_MAX: Final = 200
RETRY_MS: Final = 1_000
FULL_TOLD_MS: Final = 60_000
_RIGHT: Final = ""
_NOWHERE: Final = "-"
_COMMA_CHARS: Final = len(",")
_FLOODING: Final = frozenset({Kind.REFUSAL, Kind.LOGIN, Kind.PEER_REFUSAL})
_STOPPING: Final = (
    "the node is stopping, and its audit trail takes nothing more: send it again when it is back"
)


class _Waiting(msgspec.Struct):
    """An intent that somebody waits for."""

    fields: Mapping[str, Any]
    done: asyncio.Future[int]


class _Gathered(msgspec.Struct):
    """Equal refusals or logins of one second; `at_ms`: the first of them."""

    event: AuditEvent
    at_ms: int
    count: int


class AuditRecorder(AuditTrail):
    """An `AuditTrail` over the files of a chain; `run` meanwhile, `close` after."""

    is_on = True

    def __init__(
        self, files: ChainFiles, clock: Clock, *, node: str, bytes_max: int,
        offload: Offload = asyncio.to_thread,
    ) -> None:  # fmt: skip
        """Write behind `files`, which are open; `node`: as what the node acts by itself."""
        self._files = files
        self._clock = clock
        self._node = node
        self._bytes_max = bytes_max
        self._offload = offload
        self._intents: deque[_Waiting] = deque()
        self._outcomes: deque[Mapping[str, Any]] = deque()
        self._queue: deque[Mapping[str, Any]] = deque()
        self._flood: dict[tuple[object, ...], _Gathered] = {}
        self._flood_since_ms = 0
        self._flood_by: Counter[str] = Counter()
        """How many of the flood each host has, and of right logins each user, those of all under "" (INV-ARC5)."""
        self._details_since_ms = 0
        self._details_by: Counter[str] = Counter()
        """How many characters of details each principal has had since then (INV-ARC6)."""
        self._news = asyncio.Event()
        self._lost: Counter[str] = Counter()
        self._ended = ""
        self._full_told_ms: int | None = None
        self.recorded: Counter[str] = Counter()
        """How many records were written, by kind."""
        self.lost: Counter[str] = Counter()
        """How many events were only counted, by kind."""
        self.carried_seq = 0
        """The last record that the topic has; 0 while that is not known, or there is no topic."""
        self.unwritable = ""
        """Why the last group was not written, empty where it was."""
        _log.info("the audit trail goes on behind %s", files.head)

    @property
    def head(self) -> Head:
        """Return the last record that is durable: to be kept elsewhere."""
        return self._files.head

    @property
    def total_bytes(self) -> int:
        """Return what the files of the trail have."""
        return self._files.total_bytes

    def problem(self) -> str | None:
        """See `AuditTrail`."""
        return self.unwritable or None

    # -- what the node tells ---------------------------------------------------------------------

    def record(self, event: AuditEvent) -> None:
        """See `AuditTrail`."""
        if event.kind in _FLOODING:
            self._gather(event)
        elif event.answers:
            self._outcomes.append(self._fields(event))  # INV-ARC3
        elif len(self._queue) < QUEUE_MAX:
            self._queue.append(self._fields(event))
        else:
            self._count_lost(event.kind, 1)
        self._news.set()

    async def intent(self, event: AuditEvent) -> int:
        """See `AuditTrail`."""
        assert event.outcome is Outcome.INTENDED
        if self._ended:
            raise AuditUnwritable(self._ended)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        fields = self._fields(event)
        self._details_now()[event.actor.principal] += len(json.dumps(fields.get("details", "")))
        self._intents.append(_Waiting(fields, done))
        self._news.set()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda written: self._given_up(event, written))
            raise

    def has_room_for_details(self, principal: str) -> bool:
        """See `AuditTrail` (INV-ARC6)."""
        return self._details_now()[principal] < DETAIL_CHARS_MAX

    def _details_now(self) -> Counter[str]:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._details_since_ms >= DETAILS_MS:
            self._details_since_ms = now_ms
            self._details_by.clear()
        return self._details_by

    def _given_up(self, event: AuditEvent, written: asyncio.Future[int]) -> None:
        """Answer an intent that nobody waited for any more (INV-ARC4)."""
        if not written.cancelled() and written.exception() is None:
            seq = written.result()
            self.record(
                msgspec.structs.replace(
                    event, outcome=Outcome.FAILED, reason="given up before", answers=seq
                )
            )

    def _gather(self, event: AuditEvent) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self._flood:
            self._flood_since_ms = now_ms
        key = (
            event.kind, event.operation, event.outcome, event.actor, event.resource_type,
            clipped(event.resource), event.reason,
        )  # fmt: skip
        found = self._flood.get(key)
        if found is not None:
            found.count += event.count
        elif self._has_room(event):
            self._flood[key] = _Gathered(event, self._clock.wall_ms(), event.count)
        else:
            self._count_lost(event.kind, event.count)

    def _has_room(self, event: AuditEvent) -> bool:
        """Take a place for a refusal or a login that is not like another one of this second, if there is one (INV-ARC5)."""
        rights = self._flood_by[_RIGHT]
        places: tuple[str, ...]
        if event.outcome is Outcome.DONE:
            places, taken = (_RIGHT, event.actor.principal), rights
        else:
            places, taken = (network_of(event.actor.host) or _NOWHERE,), len(self._flood) - rights
        if taken >= FLOOD_KINDS_MAX or self._flood_by[places[-1]] >= FLOOD_OF_ONE_MAX:
            return False
        self._flood_by.update(places)
        return True

    def _count_lost(self, kind: Kind, count: int) -> None:
        self._lost[kind.value] += count
        self.lost[kind.value] += count

    def _fields(self, event: AuditEvent, at_ms: int | None = None) -> dict[str, Any]:
        """Return an event as the fields of a record; what is empty is left out."""
        actor = event.actor if event.actor.principal else _by_itself(event.actor, self._node)
        found: dict[str, Any] = {
            "at_ms": self._clock.wall_ms() if at_ms is None else at_ms,
            "node": self._node,
            "kind": event.kind.value,
            "operation": clipped(event.operation),
            "outcome": event.outcome.value,
            "principal": clipped(actor.principal),
            "host": clipped(actor.host),
            "mechanism": clipped(actor.mechanism),
            "token_id": clipped(actor.token_id),
            "request_id": clipped(actor.request_id),
            "resource_type": event.resource_type,
            "resource": clipped(event.resource),
            "reason": clipped(event.reason),
            "answers": event.answers,
            "count": event.count,
            "details": {} if event.answers else _bounded(event.details),
        }
        return {
            key: value
            for key, value in found.items()
            if value not in ("", 0, {}) and (key, value) != ("count", 1)
        }

    # -- writing ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what comes until cancelled; who waits for an intent then is refused."""
        try:
            while True:
                await self._until_due()
                if not await self._write_group():
                    await self._clock.sleep_ms(RETRY_MS)
        finally:
            self._ended = _STOPPING
            self._refuse_intents([*self._intents], _STOPPING)
            self._intents.clear()

    async def _until_due(self) -> None:
        """Return once there is something to write."""
        while not (self._intents or self._outcomes or self._queue):
            self._news.clear()
            if not self._flood:
                await self._news.wait()
                continue
            left_ms = self._flood_since_ms + FLOOD_MS - self._clock.monotonic_ms()
            if left_ms <= 0:
                self._end_flood()
                continue
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue
        if self._flood and self._clock.monotonic_ms() - self._flood_since_ms >= FLOOD_MS:
            self._end_flood()

    def _end_flood(self) -> None:
        """Let what gathered in a second be records."""
        flood, self._flood = self._flood, {}
        self._flood_by.clear()
        is_full = self._files.total_bytes >= self._bytes_max
        if is_full:
            self._tell_full()
        for each in flood.values():
            if is_full or len(self._queue) >= QUEUE_MAX:
                self._count_lost(each.event.kind, each.count)
            else:
                counted = msgspec.structs.replace(each.event, count=each.count)
                self._queue.append(self._fields(counted, each.at_ms))

    def _tell_full(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._full_told_ms is None or now_ms - self._full_told_ms >= FULL_TOLD_MS:
            self._full_told_ms = now_ms
            _log.error(
                "the audit trail has %d bytes, audit_bytes_max is %d: refusals and logins are only counted until its oldest files are moved"
                " away and the node is started again, or audit_bytes_max is raised",
                self._files.total_bytes,
                self._bytes_max,
            )

    async def _write_group(self) -> bool:
        """Write what has gathered, as one group; return whether it was."""
        waiting = [self._intents.popleft() for _ in range(min(GROUP_MAX, len(self._intents)))]
        rest, put_back = self._take_rest()
        lost, self._lost = self._lost, Counter()
        records = [each.fields for each in waiting] + rest
        wall_ms = self._clock.wall_ms()
        if lost:
            records.append(trail_fields(wall_ms, self._node, "lost", dict(lost)))
        written: list[int] = []
        before = self._files.head.seq
        try:
            await _carried(
                self._offload(lambda: written.extend(self._files.write(records, wall_ms)))
            )
        except OSError as error:
            self._not_written(waiting, error)
            self._lost += lost
            put_back()
            return False
        except asyncio.CancelledError:
            self._settle(waiting, written)
            if not written:
                self._lost += lost
                put_back()
            raise
        self._settle(waiting, written)
        self._note_written(records, before)
        return True

    def _take_rest(self) -> tuple[list[Mapping[str, Any]], Callable[[], None]]:
        """Return what nobody waits for, and what puts it back."""
        outcomes = [self._outcomes.popleft() for _ in range(min(GROUP_MAX, len(self._outcomes)))]
        queued = [self._queue.popleft() for _ in range(min(GROUP_MAX, len(self._queue)))]

        def put_back() -> None:
            self._outcomes.extendleft(reversed(outcomes))
            self._queue.extendleft(reversed(queued))

        return outcomes + queued, put_back

    def _settle(self, waiting: list[_Waiting], written: list[int]) -> None:
        if not written:
            self._refuse_intents(waiting, _STOPPING)
            return
        for each, seq in zip(waiting, written, strict=False):
            if not each.done.done():
                each.done.set_result(seq)

    def _note_written(self, records: list[Mapping[str, Any]], before: int) -> None:
        for each in records:
            self.recorded[each["kind"]] += 1
        if self._files.head.seq - before > len(records):
            _log.info("the audit trail goes on in a new file, behind %s", self._files.head)
        if self.unwritable:
            _log.info("the audit trail is written again")
            self.unwritable = ""

    def _not_written(self, waiting: list[_Waiting], error: OSError) -> None:
        why = self._files.failed or (
            f"the audit trail cannot be written: {error.strerror or error}. What cannot be recorded is not done: make room on"
            " the disk of audit_dir, where that takes long name another audit_dir in this node's file and restart it (docs/runbooks/audit.md)"
        )
        if why != self.unwritable:
            _log.error("%s", why)
        self.unwritable = why
        self._refuse_intents(waiting, why)

    def _refuse_intents(self, waiting: list[_Waiting], why: str) -> None:
        for each in waiting:
            if not each.done.done():
                each.done.set_exception(AuditUnwritable(why))

    def close(self) -> None:
        """Write what is left, and close; nothing runs on it any more."""
        self._end_flood()
        while self._outcomes or self._queue or self._lost:
            rest, put_back = self._take_rest()
            lost, self._lost = self._lost, Counter()
            wall_ms = self._clock.wall_ms()
            if lost:
                rest.append(trail_fields(wall_ms, self._node, "lost", dict(lost)))
            try:
                self._files.write(rest, wall_ms)
            except OSError as error:
                put_back()
                _log.error(
                    "%d audit records are lost as the node stops: %s",
                    len(self._outcomes) + len(self._queue),
                    error,
                )
                break
        self._files.close()
        _log.info("the audit trail ends with %s", self._files.head)


def _by_itself(actor: Actor, node: str) -> Actor:
    return msgspec.structs.replace(actor, principal=f"Node:{node}")


def _bounded(details: Mapping[str, Detail]) -> dict[str, Detail]:
    """Return details that fit into a line (INV-AUD1); what does not is counted, never dropped silently."""
    kept: dict[str, Detail] = {}
    left_chars, left_out = DETAIL_CHARS_MAX, 0
    for key, value in details.items():
        if key == LEFT_OUT and isinstance(value, int):
            left_out += value
            continue
        if isinstance(value, list):
            fitting, left_chars = _fitting(value, left_chars)
            left_out += len(value) - len(fitting)
            kept[clipped(key)] = fitting
            continue
        shown = clipped(value) if isinstance(value, str) else value
        left_chars -= written_chars(key) + written_chars(str(shown))
        if left_chars >= 0:
            kept[clipped(key)] = shown
        else:
            left_out += 1
    if left_out:
        kept[LEFT_OUT] = left_out
    return kept


def _fitting(texts: Sequence[str], left_chars: int) -> tuple[list[str], int]:
    """Return the first texts that fit, and how many characters are left. Each costs its comma, too: there may be very many that are empty."""
    fitting: list[str] = []
    for each in map(clipped, texts):
        left_chars -= written_chars(each) + _COMMA_CHARS
        if left_chars < 0:
            break
        fitting.append(each)
    return fitting, left_chars


async def _carried(work: Awaitable[None]) -> None:
    """Wait for work that a thread does, to its end; if this is cancelled, then behind it."""
    task = asyncio.get_running_loop().create_task(_of(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # heard: what was not written is put back, and `close` tries it again
        raise cancelled
    task.result()


async def _of(work: Awaitable[None]) -> None:
    await work
