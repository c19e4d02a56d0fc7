"""The primary as a link sees it: the port `geo_replicator.ports.Primary` over the peer protocol.

Every request names the region epoch that this mirror follows; the primary refuses an older one. Whatever ends the
connection becomes `LinkFailed`, and the link's back-off takes over.

INV-HPR1  what no primary can have said is not believed, and ends the connection: how many partitions a topic has, and how large its
          configs are, how far it holds a log
INV-SAC6  within one session access never goes back to an older one: several fetches are under way, and an answer that was sent before the
          registry may be read behind it

Not here: the link's decisions (`geo_replicator.link.core`), the primary's answers (`primary_side`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from geo_replicator.events import HandshakeDone, MirrorLogEnd, PrimaryLogEnd
from geo_replicator.failover_events import EntryRecord
from geo_replicator.history import HistoryDifference, ShownLog, beyond_shown, in_pieces
from geo_replicator.lag import Lag
from geo_replicator.lineage import Lineage, LogKey, TidemarkPoint
from geo_replicator.ports import (
    FetchAnswer,
    LinkFailed,
    MirrorLogs,
    Primary,
    PrimarySession,
    SentSlice,
)
from geo_replicator.topology import MirrorTopic
from idempotency.identity import RegionEpoch
from region_broker.controller.topic_configs import MIN_IN_SYNC, told_by_primary
from region_broker.limits import PARTITION_COUNT_MAX
from region_broker.ports.network import Network
from region_broker.region.mirror.donor import (
    DonorPrimary,
    NewerConfigs,
    TakeTopics,
    topics_as_told,
)
from region_broker.region.mirror.mirror_access import (
    MirrorAccess,
    NewerAccess,
    TakeAccess,
    no_access_taken,
)
from region_broker.region.peers.addresses import RegionAddresses, opened_region
from region_broker.region.peers.client import PeerClient
from region_broker.region.peers.history_messages import (
    AskDeletions,
    DeletionsTold,
    HistoryJudged,
    LogEvidence,
    ProveHistory,
)
from region_broker.region.peers.protocol import (
    AnyMessage,
    CheckedLogs,
    CheckLogs,
    FetchedLogs,
    FetchLogs,
    FetchPosition,
    Hello,
    LogEpochEnd,
    PeerIdentity,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
    ReachedNoted,
    ReportReached,
    SyncedTopic,
    SyncTopics,
    TopicRegistry,
)
from region_broker.region.ports import MetadataSide, Term
from region_broker.security.access import Access

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
FETCH_WAIT_MS: Final = 1_000
ANSWER_TIMEOUT_S: Final = 15.0
assert FETCH_WAIT_MS * 5 < ANSWER_TIMEOUT_S * 1000, "a waiting fetch is no broken one"


class Taking(NamedTuple):
    """What becomes of what a primary says beside its records."""

    access: TakeAccess = no_access_taken
    topics: TakeTopics = topics_as_told
    version: Callable[[], int] = lambda: -1
    """Returns as of which version of the primary topics are here once what a donor said is carried out, -1: not known."""


NOTHING_TAKEN: Final = Taking()


class PeerPrimary:
    """Connects to who speaks for the primary region."""

    def __init__(
        self,
        network: Network,
        addresses: RegionAddresses,
        region: str,
        identity: PeerIdentity,
        region_epoch: RegionEpoch,
        *,
        taking: Taking = NOTHING_TAKEN,
    ) -> None:
        """Follow `region_epoch`, at the nodes of `region`."""
        self._taking = taking
        self._network = network
        self._addresses = addresses
        self._region = region
        self._identity = identity
        self._region_epoch = region_epoch

    def session(self) -> AbstractAsyncContextManager[tuple[PrimarySession, HandshakeDone]]:
        """Connect and make the handshake; raises `LinkFailed`."""
        return self._session()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[tuple[PrimarySession, HandshakeDone]]:
        try:
            async with opened_region(
                self._network, self._addresses, self._region, self._identity
            ) as (client, hello):
                handshake = HandshakeDone(
                    primary_region=hello.region,
                    region_epoch=hello.region_epoch,
                    acting=hello.acting_region == hello.region,
                    lineage=_lineage_of(hello),
                )
                yield PeerPrimarySession(client, self._region_epoch, self._taking), handshake
        except (PeerUnreachable, PeerRefused) as error:
            raise LinkFailed(str(error)) from error


def _topic_of(topic: SyncedTopic) -> MirrorTopic:
    """Return a topic of the primary; ValueError where no region can have it (INV-HPR1)."""
    if not 1 <= topic.partition_count <= PARTITION_COUNT_MAX:
        raise ValueError(
            f"{topic.name!r} has {topic.partition_count} partitions, of 1 to {PARTITION_COUNT_MAX}"
        )
    try:
        configs = told_by_primary(topic.configs)
    except ValueError as error:
        raise ValueError(f"{topic.name!r} has {error}") from error
    int(configs.get(MIN_IN_SYNC, "1"))
    return MirrorTopic(
        topic_id=UUID(hex=topic.topic_id),
        name=topic.name,
        partition_count=topic.partition_count,
        domain=topic.domain,
        internal=topic.internal,
        configs=configs,
    )


def _lineage_of(hello: Hello) -> Lineage:
    try:
        return Lineage(
            tuple(EntryRecord(**msgspec.structs.asdict(entry)).entry() for entry in hello.lineage)
        )
    except ValueError as error:
        raise LinkFailed(
            f"the lineage of region {hello.region} is not readable: {error}"
        ) from error


class _FetchUnderWay:
    """A fetch that was sent; awaiting it gives the answer, decoded, once the access that came with it is kept here (INV-SAC1)."""

    def __init__(
        self, answer: Awaitable[tuple[FetchedLogs, memoryview]],
        take_access: Callable[[Access], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._answer = answer
        self._take_access = take_access

    def __await__(self) -> Generator[object, None, FetchAnswer]:
        return self._decoded().__await__()

    async def _decoded(self) -> FetchAnswer:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                fetched, attachment = await self._answer
            answer = fetch_answer(fetched, attachment)
        except TimeoutError as error:
            raise LinkFailed(
                f"the primary did not answer a fetch within {ANSWER_TIMEOUT_S} s"
            ) from error
        except (PeerUnreachable, PeerRefused, ValueError) as error:
            raise LinkFailed(str(error)) from error
        if fetched.access is not None:
            await self._take_access(fetched.access)
        return answer


def taking_of(
    term: Term, metadata: MetadataSide, followed_version: int, *, access_epoch: int
) -> Taking:
    """Return what becomes in `metadata` of what the primary of `term` says.

    Where that is a donor: `followed_version`: as of which version of the primary the topics are here, -1: not known; `access_epoch`:
    of which region epoch's history access is here (INV-QM3).
    """
    if not term.from_donor:
        is_older = 0 < access_epoch < term.region_epoch  # 0: nothing was reached here yet
        return Taking(MirrorAccess(metadata, of_older_epoch=is_older).take)
    configs = NewerConfigs(metadata, followed_version)
    take_access = NewerAccess(metadata, access_epoch, term.region_epoch)
    return Taking(take_access, configs, lambda: configs.version)


def primary_of(
    network: Network,
    addresses: RegionAddresses,
    term: Term,
    identity: PeerIdentity,
    logs: MirrorLogs,
    taking: Taking,
) -> Primary:
    """Return whom the link of `term` follows, which copies into `logs`; what else it says is for `taking`."""
    region, region_epoch = term.primary_region, term.region_epoch
    primary = PeerPrimary(network, addresses, region, identity, region_epoch, taking=taking)
    return DonorPrimary(primary, logs) if term.from_donor else primary


class PeerPrimarySession:
    """One connection to the primary, after its handshake."""

    def __init__(self, client: PeerClient, region_epoch: RegionEpoch, taking: Taking) -> None:
        """Ask over `client`, after its handshake."""
        self._taking = taking
        self._client = client
        self._region_epoch = region_epoch
        self._access_epoch = -1
        self._taken_access = (-1, -1)
        """The newest access that was said, by region epoch and number."""

    async def _call(self, message: PeerMessage, answer_type: type[AnyMessage]) -> AnyMessage:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._client.call(message, answer_type)
        except TimeoutError as error:
            raise LinkFailed(f"the primary did not answer within {ANSWER_TIMEOUT_S} s") from error
        except (PeerUnreachable, PeerRefused) as error:
            raise LinkFailed(str(error)) from error

    async def show_history(
        self, point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        """Show a piece of what was reached at `point`; return what the primary does not hold of it (T33)."""
        message = ProveHistory(
            region_epoch=self._region_epoch,
            reached_region_epoch=point.region_epoch,
            number=point.number,
            logs=tuple(map(LogEvidence.of, shown)),
        )
        judged = await self._call(message, HistoryJudged)
        try:
            found = [each.difference() for each in judged.differences]
        except ValueError as error:
            raise LinkFailed(f"the primary sent a log key that is none: {error}") from error
        if wrong := beyond_shown(found, shown):
            raise LinkFailed(f"the primary {wrong}")  # INV-HPR1
        return found

    async def registry(self) -> tuple[int, tuple[MirrorTopic, ...]]:
        """Return (metadata version, all topics of the domain)."""
        answer = await self._call(SyncTopics(region_epoch=self._region_epoch), TopicRegistry)
        try:
            topics = tuple(map(_topic_of, answer.topics))
        except ValueError as error:
            raise LinkFailed(f"the primary sent a topic that is none: {error}") from error
        if answer.access is not None:
            self._access_epoch = answer.access_epoch
            await self._take_access(answer.access)
        return answer.metadata_version, self._taking.topics(topics, answer.followed_version)

    async def _take_access(self, access: Access) -> None:
        """Take what the primary says, unless it has said a newer one (INV-SAC6); of a donor it is of the history of which its registry is.

        1. A right is given, and taken back within a round trip. 2. The registry, read behind the first of two fetches, is that without it.
        3. The second fetch was answered in between: that is older, and would be in force here, also over a failover.
        """
        said = self._access_epoch, access.number
        if said < self._taken_access:
            return
        self._taken_access = said
        await self._taking.access(access, self._access_epoch)

    async def deletions(self, lost: Mapping[LogKey, int]) -> Sequence[UUID]:
        """Return which topics of these logs the primary has deleted by a command (T34); it hears that the others are
        here.

        With each log goes the leader epoch of its newest batch.
        """
        told: list[UUID] = []
        for keys in in_pieces(lost):
            message = AskDeletions(
                region_epoch=self._region_epoch,
                logs=tuple(key.encode() for key in keys),
                written_under=tuple(lost[key] for key in keys),
            )
            answer = await self._call(message, DeletionsTold)
            try:
                told += [UUID(hex=topic_id) for topic_id in answer.topic_ids]
            except ValueError as error:
                raise LinkFailed(f"the primary sent a topic id that is none: {error}") from error
        return told

    async def check(self, logs: Mapping[LogKey, MirrorLogEnd]) -> Mapping[LogKey, PrimaryLogEnd]:
        """Return where the primary's logs leave these leader epochs; unknown logs are left out."""
        asked = tuple(
            LogEpochEnd(key.topic_id.hex, key.partition, end.leader_epoch, end.end_offset)
            for key, end in logs.items()
        )
        checked = await self._call(
            CheckLogs(region_epoch=self._region_epoch, logs=asked), CheckedLogs
        )
        try:
            return {
                LogKey(UUID(hex=end.topic_id), end.partition): PrimaryLogEnd(
                    end.leader_epoch, end.end_offset, end.log_start_offset, end.readable_from
                )
                for end in checked.logs
            }
        except ValueError as error:
            raise LinkFailed(f"the primary sent a topic id that is none: {error}") from error

    def fetch(
        self, positions: Mapping[LogKey, int], forgotten: Sequence[LogKey]
    ) -> Awaitable[FetchAnswer]:
        """Send a fetch now; await the result for its answer."""
        message = FetchLogs(
            region_epoch=self._region_epoch,
            positions=tuple(
                FetchPosition(key.topic_id.hex, key.partition, position)
                for key, position in positions.items()
            ),
            forgotten=tuple((key.topic_id.hex, key.partition) for key in forgotten),
            bytes_max=FETCH_BYTES_MAX,
            wait_ms_max=FETCH_WAIT_MS,
        )
        try:
            return _FetchUnderWay(self._client.begin(message, FetchedLogs), self._take_access)
        except PeerUnreachable as error:
            raise LinkFailed(str(error)) from error

    async def report_reached(self, point: TidemarkPoint, lag: Lag) -> None:
        """Tell the primary what was reached, and how far this mirror lags."""
        _ = await self._call(
            ReportReached(
                region_epoch=self._region_epoch,
                reached_region_epoch=point.region_epoch,
                number=point.number,
                lag_records=lag.records,
                lag_bytes=lag.bytes,
                lag_ms=lag.ms,
            ),
            ReachedNoted,
        )


def fetch_answer(fetched: FetchedLogs, attachment: memoryview) -> FetchAnswer:
    """Cut the attachment into the slices that the answer describes; ValueError when they disagree."""
    parts = []
    start = 0
    for part in fetched.partitions:
        end = start + part.data_bytes
        if part.data_bytes < 0 or end > len(attachment):
            raise ValueError("a fetch answer is longer than its attachment")
        parts.append(
            SentSlice(
                key=LogKey(UUID(hex=part.topic_id), part.partition),
                position=part.position,
                data=attachment[start:end],
                high_watermark=part.high_watermark,
                log_start_offset=part.log_start_offset,
                unsent_bytes=part.unsent_bytes,
                cleaned_below=part.cleaned_below,
            )
        )
        start = end
    return FetchAnswer(fetched.metadata_version, fetched.sent_wall_ms, tuple(parts))
