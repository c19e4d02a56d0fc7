"""The primary's side of a link: the topic registry, leader epoch checks, what is new in the logs, and reports.

INV-SO1  only bytes below HW leave, verbatim; `__tidemarks` and the ledgers like any other log
INV-SO7  nothing is served before this region's own logs are cut to the base that it took over at (T20): a mirror would
         copy back what the lineage has taken away, and hold it beside what is written at those offsets next
INV-SO9  nothing is compared with, or copied from, a history that is in dispute, or has lost a log that a tidemark covers
         records of: a mirror would cut its own logs to it (T33, T36). Of one in dispute users, ACLs and topics are not told
         either: a mirror may have newer ones. One that has not reached a tidemark of this
         region epoch yet has shown nothing under it. Who takes over, and was promised, cuts nothing to what it copies
         (INV-QM1): it may
INV-SO11 nothing is said against what a mirror has of a log that could not be opened here: it tells nothing, and a mirror would
         give up what it has (T23). The two are compared once that log is whole again
INV-SO3  a fetch is answered as soon as a watched log has something new, or the registry changed; a waiting
         fetch costs nothing: logs wake it, nobody polls
INV-SO5  what moved is gathered until a tidemark comes, or for `GATHER_MS`: readers of a mirror see nothing of it
         before, and one answer costs primary and mirror much the same however much is in it. Nobody waits while
         there is a backlog
INV-SO6  what a mirror that is behind asks for, and memory has not, is read in by a thread: the primary's loop does not
         wait for it
INV-SO4  logs take turns: one that has much to send is behind those that found no room in this answer
INV-SO14 a log sends COPIED_BATCHES_MAX batches at a time, however small: the mirror appends them in one step
INV-SO12 a region whose feature level has no sealed topics, or no users and ACLs, follows none: an older version would give its readers what is
         sealed, write plain what is to be sealed once it acts, and let everybody in. The registry is refused, and says what to do; so
         is what is fetched under it
INV-SO13 many logs are compared a few at a time, and all under the history that is in force at the end
INV-SO10 an answer is not read for longer than `COLLECT_MS` and its last log: a mirror gives up one that takes too long, and
         its next session begins with all logs again. Those that are left have the first turns in the next answer

Not here: the mirror's side (`region_link`, `geo_replicator.link`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

from geo_replicator.history import HistoryDifference
from geo_replicator.lineage import LogKey, TidemarkPoint
from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.ports import Clock
from idempotency.record_batch import Buffer, iter_headers
from region_broker.controller.access_commands import FollowAccess
from region_broker.controller.feature_levels import NOT_SUPPORTED, SEALS_SINCE_LEVEL, since_type
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, TIDEMARK_LEDGER, MetadataImage
from region_broker.controller.topic_configs import told_to_mirror
from region_broker.limits import COPIED_BATCHES_MAX
from region_broker.log.failures import LogError, OffsetOutOfRange
from region_broker.log.log_config import ENCRYPTION_KEY
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.table import PartitionTable
from region_broker.region.mirror.mirror_lag import COUNTED_BYTES_MAX, MirrorLags, Taken
from region_broker.region.mirror.shown_history import ShownHistory
from region_broker.region.peers.history_messages import (
    AskDeletions,
    DeletionsTold,
    HistoryJudged,
    LogDifference,
    ProveHistory,
)
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    STALE_REGION_EPOCH,
    CheckedLogs,
    CheckLogs,
    FetchedLogs,
    FetchedPartition,
    FetchLogs,
    Hello,
    LogEpochEnd,
    PeerIdentity,
    PeerRefused,
    ReachedNoted,
    ReportReached,
    SyncedTopic,
    SyncTopics,
    TopicRegistry,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply
from region_broker.region.ports import MetadataSide
from region_broker.security.access import ACCESS_BYTES_MAX, NO_ACCESS, Access, bytes_in
from region_broker.wire.cooperative_yield import CooperativeYield

_log: Final = logging.getLogger("tidemark.mirror")
LOG_BYTES_MAX: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_MS_MAX: Final = 10_000
GATHER_MS: Final = 10
COLLECT_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a mirror region said last: its reached tidemark."""

    region: str
    reached: TidemarkPoint


class PrimarySide:
    """Answers the links of all mirrors. `register` it with the peer server once."""

    def __init__(
        self,
        partitions: PartitionTable,
        metadata: MetadataSide,
        identity: PeerIdentity,
        clock: Clock,
        *,
        region: str,
    ) -> None:
        """Serve what `partitions` holds while `identity` says that this `region` acts."""
        self._region = region
        self._partitions = partitions
        self._metadata = metadata
        self._identity = identity
        self._clock = clock
        self._sessions: dict[
            _FetchSession, None
        ] = {}  # those that are open, in the order they began
        self._fetching: WeakKeyDictionary[PeerSession, _FetchSession] = WeakKeyDictionary()
        self._told_access: WeakKeyDictionary[PeerSession, Access] = WeakKeyDictionary()
        """What each session was told of access with its topics."""
        self._measured: Access = NO_ACCESS
        self.reports: dict[str, MirrorReport] = {}
        self.lags = MirrorLags(clock.monotonic_ms())
        self._history = ShownHistory(partitions)
        self.on_refuted: Callable[[str, TidemarkPoint, Sequence[HistoryDifference]], None] = (
            _nobody_hears
        )
        self.meet: Callable[[str], Awaitable[None]] | None = None
        """Told of each mirror that copies, before it is answered."""
        self.published: Callable[[], TidemarkPoint] = lambda: TidemarkPoint(RegionEpoch(0), 0)
        self.waiting_since_ms: Callable[[], int | None] = lambda: None
        """Since when something durable here is under no tidemark (INV-CL7)."""
        self.cut_is_owed: Callable[[], bool] = lambda: False
        """Whether this region took over and has not cut its logs yet: then it says it acts, and serves nothing (INV-SO7)."""
        self.doubt: Callable[[], str] = lambda: ""
        """Why this region's history may not count; empty where nothing is known against it (INV-SO9)."""
        self.dispute: Callable[[], str] = lambda: ""
        """The same, but for logs that are lost: topics, users and ACLs are here then as they were."""
        self.promised_to: Callable[[], str] = lambda: ""
        """The region that this one stands fenced for: nothing moves here until it acts, and it may copy all."""
        self.followed_version: Callable[[RegionEpoch], int] = lambda _: -1
        """Returns what `TopicRegistry.followed_version` says, of topics that were followed under a region epoch."""
        self.access_epoch: Callable[[], int] = lambda: -1
        """Returns the newest region epoch of whose history access here is known to be, -1 where of none (INV-QM3)."""

    def register(self, server: PeerServer) -> None:
        """Answer the link's messages on `server`."""
        server.register(ProveHistory, self._prove_history)
        server.register(AskDeletions, self._ask_deletions)
        server.register(SyncTopics, self._sync_topics)
        server.register(CheckLogs, self._check_logs)
        server.register(FetchLogs, self._fetch_logs)
        server.register(ReportReached, self._report_reached)

    def begin_anew(self) -> None:
        """Forget what mirrors have said: this node begins to lead its region, and others have led it meanwhile."""
        self.reports.clear()
        self.lags.forget()

    def notice_topics(self) -> None:
        """Wake waiting fetches: the topic registry changed."""
        for session in self._sessions:
            session.wake()

    def _admit(self, region_epoch: RegionEpoch, reader: str = "") -> None:
        """Raise `PeerRefused` unless this region acts, or stands fenced for `reader`."""
        ours = self._identity.hello()
        if region_epoch < ours.region_epoch:
            raise PeerRefused(
                STALE_REGION_EPOCH,
                f"the mirror follows region epoch {region_epoch}, the domain is at"
                f" {ours.region_epoch}: follow that lineage first",
            )
        promised = region_epoch == ours.region_epoch and reader and reader == self.promised_to()
        acts = region_epoch == ours.region_epoch and ours.acting_region == ours.region
        if not (promised or acts):
            raise PeerRefused(
                NOT_ACTING,
                f"region {ours.region} does not act under region epoch {region_epoch}",
            )
        if self.cut_is_owed():
            raise PeerRefused(
                NOT_ACTING,
                f"region {ours.region} cuts its logs to where region epoch {region_epoch} begins: ask again",
            )

    def _admit_copy(self, region_epoch: RegionEpoch, reader: str) -> None:
        """Raise `PeerRefused` unless `reader` may compare its logs with this region's, and copy (INV-SO9)."""
        self._admit(region_epoch, reader)
        self._check_history(self.doubt, reader)

    def _check_history(self, against: Callable[[], str], reader: str) -> None:
        """Raise `PeerRefused` where something is known against this region's history, unless `reader` was promised (INV-SO9)."""
        doubt = "" if reader == self.promised_to() else against()
        if doubt:
            raise PeerRefused(
                NOT_ACTING,
                f"nothing is to be copied from region {self._region} until an operator has chosen:"
                f" {doubt}",
            )

    async def _prove_history(
        self, session: PeerSession, message: ProveHistory, _attachment: memoryview
    ) -> HistoryJudged:
        """Compare what a mirror has shown with what is here; what is not must stop the writes (T33)."""
        self._admit(message.region_epoch, session.hello.region)
        try:
            shown = [evidence.shown() for evidence in message.logs]
        except ValueError as error:
            raise PeerRefused("malformed", f"a log key is none: {error}") from error
        found = await self._history.differences(shown, self._metadata.image.may_have_deleted)
        self._admit(message.region_epoch, session.hello.region)
        acts = self._acts()
        if acts and found and message.reached_region_epoch == message.region_epoch:
            point = TidemarkPoint(message.reached_region_epoch, message.number)
            self.on_refuted(session.hello.region, point, found)
        return HistoryJudged(differences=tuple(map(LogDifference.of, found)))

    async def _ask_deletions(
        self, session: PeerSession, message: AskDeletions, _attachment: memoryview
    ) -> DeletionsTold:
        """Name the deletions; a topic that a mirror holds, and that no command took away, must stop the writes (T34)."""
        self._admit(message.region_epoch)
        image = self._metadata.image
        try:
            newest = message.written_under or (-1,) * len(message.logs)
            lost = dict(zip(map(LogKey.decode, message.logs), newest, strict=True))
        except ValueError as error:
            raise PeerRefused("malformed", f"a log key is none: {error}") from error
        told = {key.topic_id for key in lost} & image.deleted.keys()
        missing = [
            HistoryDifference(key, 0, 0, 0, "it holds records there; no deletion of it is known")
            for key, epoch in lost.items()
            if not image.may_have_deleted(key.topic_id, epoch) and not self._has(key)
        ]
        if missing:
            point = TidemarkPoint(message.region_epoch, self.published().number)
            self.on_refuted(session.hello.region, point, missing)
        return DeletionsTold(topic_ids=tuple(sorted(topic_id.hex for topic_id in told)))

    def _acts(self) -> bool:
        ours = self._identity.hello()
        return ours.acting_region == ours.region and not self.promised_to()

    def _has(self, key: LogKey) -> bool:
        topic = self._metadata.image.topic_by_id(key.topic_id)
        return topic is not None and key.partition < topic.partition_count

    async def _sync_topics(
        self, session: PeerSession, message: SyncTopics, _attachment: memoryview
    ) -> TopicRegistry:
        self._admit(message.region_epoch, session.hello.region)
        self._check_history(self.dispute, session.hello.region)
        image = self._metadata.image
        _check_level(session.hello, image)
        topics = tuple(
            SyncedTopic(
                topic_id=topic.topic_id.hex,
                name=topic.name,
                partition_count=topic.partition_count,
                domain=topic.domain,
                internal=topic.internal,
                configs=told_to_mirror(topic.configs),
            )
            for topic in image.topics.values()
            if topic.domain == DEFAULT_DOMAIN
        )
        self._warn_of_size(image.access)
        self._told_access[session] = image.access
        return TopicRegistry(
            metadata_version=image.version,
            topics=topics,
            access=image.access,
            access_epoch=self.access_epoch(),
            followed_version=self.followed_version(message.region_epoch),
        )

    def _warn_of_size(self, access: Access) -> None:
        """Say once of what an older version took that not every mirror can take it over (INV-SAC5)."""
        if access is not self._measured and bytes_in(access) > ACCESS_BYTES_MAX:
            _log.warning(
                "users, ACLs, quotas and tokens have %d bytes: a mirror region of several nodes takes over %d at most, and is not followed"
                " beyond that. Remove some.",
                bytes_in(access),
                ACCESS_BYTES_MAX,
            )
        self._measured = access

    async def _check_logs(
        self, session: PeerSession, message: CheckLogs, _attachment: memoryview
    ) -> CheckedLogs:
        self._admit_copy(message.region_epoch, session.hello.region)
        answers, yielding = [], CooperativeYield()
        for asked in message.logs:
            await yielding.row()
            partition = self._partitions.by_id(_topic_id(asked.topic_id), asked.partition)
            if partition is None:
                continue
            if not partition.log.is_opened:  # INV-SO11
                same = LogEpochEnd(
                    asked.topic_id, asked.partition, asked.leader_epoch, asked.end_offset
                )
                answers.append(same)
                continue
            leader_epoch, end_offset = _epoch_end(partition, asked.leader_epoch)
            answers.append(
                LogEpochEnd(
                    asked.topic_id,
                    asked.partition,
                    leader_epoch,
                    end_offset,
                    partition.kept_from,
                    partition.log_start_offset,
                )
            )
        self._admit_copy(message.region_epoch, session.hello.region)  # still (INV-SO13)
        return CheckedLogs(logs=tuple(answers))

    async def _fetch_logs(
        self, session: PeerSession, message: FetchLogs, _attachment: memoryview
    ) -> Reply:
        self._admit_copy(message.region_epoch, session.hello.region)
        fetching = self._fetching.get(session)
        if fetching is None:
            opened = fetching = _FetchSession(self._partitions, self._metadata, self._clock)
            fetching.told_access = self._told_access.get(session)
            self._fetching[session] = fetching
            self._sessions[fetching] = None
            session.on_close(lambda: self._end(session.hello.region, opened))
            self.lags.began(session.hello.region, fetching.positions, self._clock.monotonic_ms())
        if self.meet is not None and self._acts():
            await self._known(session.hello.region, self.meet)
        self.lags.heard(session.hello.region, self._clock.monotonic_ms())
        fetching.taken.asked()
        for topic_id, partition in message.forgotten:
            fetching.forget(LogKey(_topic_id(topic_id), partition))
        for asked in message.positions:
            fetching.begin(LogKey(_topic_id(asked.topic_id), asked.partition), asked.position)
        reply = await fetching.answer(message)
        self._admit_copy(message.region_epoch, session.hello.region)
        _check_level(
            session.hello, self._metadata.image
        )  # it may have changed since it read the registry
        return reply

    async def _known(self, region: str, meet: Callable[[str], Awaitable[None]]) -> None:
        try:
            await meet(region)
        except OSError as error:  # unknown to retention it would lose what it has not copied (T14)
            raise PeerRefused(
                "disk", f"region {region} cannot be noted as a mirror: {error}"
            ) from error

    def _end(self, region: str, fetching: "_FetchSession") -> None:
        fetching.close()
        self.lags.ended(region)
        self._sessions.pop(fetching, None)

    async def _report_reached(
        self, session: PeerSession, message: ReportReached, _attachment: memoryview
    ) -> ReachedNoted:
        self._admit(message.region_epoch)
        region = session.hello.region
        self.reports[region] = MirrorReport(
            region=region,
            reached=TidemarkPoint(message.reached_region_epoch, message.number),
        )
        self.lags.heard(region, self._clock.monotonic_ms())
        self.lags.reached(region, self.reports[region].reached)
        published = self.published()
        return ReachedNoted(region_epoch=published.region_epoch, published_number=published.number)

    def positions_of(self, region: str) -> Mapping[LogKey, int] | None:
        """Return how far a mirror has copied each log, None if it has not asked since this node started."""
        return self.lags.positions_of(region)

    def heard_ms_ago(self, region: str) -> int | None:
        """Return how long ago a mirror was heard, None if it was not since this node started."""
        return self.lags.heard_ms_ago(region, self._clock.monotonic_ms())

    def note_published(self, point: TidemarkPoint) -> None:
        """Note a tidemark of this region."""
        self.lags.published(point, self._clock.monotonic_ms())

    def copied_to(self, partition: Partition) -> int | None:
        """Return how far all mirrors have copied `partition`; None where none has asked since this node started."""
        key = LogKey(partition.topic_id, partition.tp.partition)
        copied = [self.positions_of(region) or {} for region in self._others()]
        return min((positions[key] for positions in copied if key in positions), default=None)

    def _others(self) -> list[str]:
        return [region for region in self._metadata.image.regions if region != self._region]

    def status(self) -> dict[str, object]:
        """Return how far each mirror is, as this region knows it (`mirror_lag`), as JSON-able values."""
        now_ms, waiting_since_ms = self._clock.monotonic_ms(), self.waiting_since_ms()
        return {
            region: self.lags.status(
                region, self._partitions, now_ms, waiting_since_ms=waiting_since_ms
            )
            for region in self._others()
        }


def _nobody_hears(_region: str, _point: TidemarkPoint, _found: Sequence[HistoryDifference]) -> None:
    return None


def _topic_id(text: str) -> UUID:
    try:
        return UUID(hex=text)
    except ValueError as error:
        raise PeerRefused("malformed", f"{text!r} is no topic id") from error


def _epoch_end(partition: Partition, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
    """Return (largest epoch <= the asked one, its end); an epoch newer than all gives the newest."""
    if leader_epoch > partition.log.epochs.latest:
        return partition.log.epochs.latest, partition.log_end_offset
    return partition.epoch_end_offset(leader_epoch)


class _FetchSession:
    """One mirror's fetch positions: every log goes on where the last answer ended."""

    def __init__(self, partitions: PartitionTable, metadata: MetadataSide, clock: Clock) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._clock = clock
        self.positions: dict[LogKey, int] = {}
        self.taken = Taken()
        self._unsubscribe: dict[LogKey, Callable[[], None]] = {}
        self._moved: dict[LogKey, None] = {}
        # `_wakes`: there is something to send. `_hurries`: and it is not to wait for more (INV-SO5).
        self._wakes = asyncio.Event()
        self._hurries = asyncio.Event()
        self._turn = asyncio.Lock()
        self._told_version = -1
        self.told_access: Access | None = None
        self._closed = False

    def begin(self, key: LogKey, position: int) -> None:
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None:
            return
        self.positions[key] = position
        if key not in self._unsubscribe:
            hurries = partition.tp.topic == TIDEMARK_LEDGER
            self._unsubscribe[key] = partition.watchers.add(
                partial(self._mark, key, hurries=hurries)
            )
        self._mark(key, hurries=True)

    def forget(self, key: LogKey) -> None:
        self.positions.pop(key, None)
        self._moved.pop(key, None)
        unsubscribe = self._unsubscribe.pop(key, None)
        if unsubscribe is not None:
            unsubscribe()

    def _mark(self, key: LogKey, *, hurries: bool) -> None:
        self._moved[key] = None
        self._wakes.set()
        if hurries:
            self._hurries.set()

    def wake(self) -> None:
        self._wakes.set()
        self._hurries.set()

    def close(self) -> None:
        self._closed = True
        self.taken.give_up(self.positions)
        for unsubscribe in self._unsubscribe.values():
            unsubscribe()
        self._unsubscribe.clear()
        self.wake()

    async def answer(self, request: FetchLogs) -> Reply:
        """Answer in turn; wait for news at most as long as asked (INV-SO3)."""
        async with self._turn:
            if self._metadata.image.version == self._told_version:
                await self._wait(self._wakes, min(request.wait_ms_max, WAIT_MS_MAX))
                if self._moved:
                    await self._wait(self._hurries, GATHER_MS)
            return await self._collect(request) or self._reply([], [])

    async def _wait(self, event: asyncio.Event, wait_ms: int) -> None:
        if self._closed or event.is_set():
            return
        async with asyncio.TaskGroup() as tasks:
            woken = tasks.create_task(event.wait())
            timer = tasks.create_task(self._clock.sleep_ms(wait_ms))
            await asyncio.wait((woken, timer), return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            timer.cancel()

    async def _collect(self, request: FetchLogs) -> Reply | None:
        self._wakes.clear()
        self._hurries.clear()
        news = self._metadata.image.version != self._told_version
        parts: list[FetchedPartition] = []
        data: list[Buffer] = []
        room = min(request.bytes_max, ANSWER_BYTES_MAX)
        waiting, self._moved = self._moved, {}
        left, unfinished = list[LogKey](), list[LogKey]()
        until_ms = self._clock.monotonic_ms() + COLLECT_MS
        for key in waiting:
            if room <= 0 or self._clock.monotonic_ms() >= until_ms:
                left.append(key)
                continue
            # One after the other: what lies behind a range that was read in is on its way, too (`Disk.warm`).
            taken = await self._partitions.cold_reads.read(
                partial(self._take, key, min(room, LOG_BYTES_MAX))
            )
            if taken is not None:
                part, part_data = taken
                parts.append(part)
                data.append(part_data)
                room -= len(part_data)
                if self.positions[key] < part.high_watermark:
                    unfinished.append(key)
        moved_meanwhile, self._moved = self._moved, {}
        for key in left:
            self._mark(key, hurries=True)
        self._moved |= moved_meanwhile
        for key in unfinished:
            self._mark(key, hurries=True)
        self.taken.answered({_key_of(part): part.position for part in parts})
        return self._reply(parts, data) if parts or news else None

    def _take(
        self, key: LogKey, bytes_max: int, *, wait: bool
    ) -> tuple[FetchedPartition, Buffer] | None:
        position = self.positions.get(key)
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if position is None or partition is None:
            return None
        high_watermark = partition.high_watermark
        if position >= high_watermark and position >= partition.kept_from:
            return None
        try:
            data = partition.reader.read_raw(
                position, bytes_max, high_watermark, wait=wait, batches_max=COPIED_BATCHES_MAX
            )
        except OffsetOutOfRange as error:
            # Its next session begins with a check of all logs, and this one waits.
            raise PeerRefused("out-of-range", f"{key.encode()}: {error}") from error
        except LogError:
            # Said and counted by the partition; the other logs go on, this one is tried again when it moves.
            return None
        position_after = _end_of(data, position)
        unsent_bytes = 0
        if position_after < high_watermark:
            unsent_bytes = partition.reader.readable_bytes(
                position_after, Isolation.DURABLE, COUNTED_BYTES_MAX, wait=wait
            )
        self.positions[key] = position_after
        part = FetchedPartition(
            key.topic_id.hex,
            key.partition,
            position,
            len(data),
            high_watermark,
            partition.log_start_offset,
            unsent_bytes,
            partition.log.cleaning.holes_below,
        )
        return part, data

    def _reply(self, parts: list[FetchedPartition], data: list[Buffer]) -> Reply:
        """Answer with what was read, and with the access of a moment behind that: that of a tidemark in it, or newer (INV-SAC1)."""
        image = self._metadata.image
        self._told_version = image.version
        access = None if image.access is self.told_access else image.access
        self.told_access = image.access
        message = FetchedLogs(
            metadata_version=self._told_version,
            sent_wall_ms=self._clock.wall_ms(),
            partitions=tuple(parts),
            access=access,
        )
        return Reply(message, data)


def _key_of(part: FetchedPartition) -> LogKey:
    return LogKey(_topic_id(part.topic_id), part.partition)


def _end_of(data: Buffer, position: int) -> int:
    """Return the offset behind the last batch of `data`, `position` when it holds none."""
    for _, header in iter_headers(data):
        position = header.next_offset
    return position


def _check_level(mirror: Hello, image: MetadataImage) -> None:
    """Raise `PeerRefused` where a mirror's level has not what is in the metadata (INV-SO12)."""
    level = mirror.feature_level
    what = ""
    if level < since_type(FollowAccess) and image.access != NO_ACCESS:
        what = "users, ACLs, quotas or tokens"
    elif level < SEALS_SINCE_LEVEL:
        sealed = [t.name for t in image.topics.values() if t.configs.get(ENCRYPTION_KEY)]
        what = f"topics that are sealed ({ENCRYPTION_KEY}), as {min(sealed)}" if sealed else ""
    if what:
        raise PeerRefused(
            NOT_SUPPORTED,
            f"the primary has {what}, and region {mirror.region} is at feature level {level}: run this version on all nodes of that region, and"
            " raise its level (tidemark cluster upgrade --finalize)",
        )
