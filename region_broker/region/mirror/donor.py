"""A region that stands fenced by its promise, as the link of the candidate sees it: the port `geo_replicator.ports.Primary` (T24).

INV-QM1  nothing that the candidate holds is cut, dropped or deleted because the donor lacks it: it may hold less of
         one log and more of another, since tidemarks are reached log by log
INV-QM2  a log is copied on only where both hold the same bytes up to the shorter end; a difference ends the session, and
         with it the takeover: which history counts is then the operator's choice
INV-QM3  of users, ACLs, quotas and tokens the newer of both counts: who has reached less may have been told more
         1. The donor is cut off. 2. A right is revoked; the candidate, which has much to copy yet, hears of it at once. 3. The primary
         is lost. 4. Was the candidate to be as the donor is, the right would be back.
         The number counts the changes of one history: where both know theirs by another region epoch, the newer one counts
         1. A region acts, is cut off, and changes access; nobody hears of it. 2. Another one takes over, and revokes less often. 3. The
         first one returns, and has no link yet when that primary is lost. 4. Its number is the greater one, of a lost life.
INV-QM4  so it is with the configs of topics, where both know as of which version of the primary they have them; else the donor's count

Not here: who the donor is, and how long to wait for it (`region.failover.steps.catching_up`); its answers
(`primary_side`).
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias
from uuid import UUID

from geo_replicator.events import HandshakeDone, MirrorLogEnd, PrimaryLogEnd
from geo_replicator.history import NAMED_MAX, HistoryDifference, ShownLog, in_pieces
from geo_replicator.lag import Lag
from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from geo_replicator.ports import FetchAnswer, LinkFailed, MirrorLogs, Primary, PrimarySession
from geo_replicator.topology import MirrorTopic
from idempotency.identity import LeaderEpoch
from region_broker.region.ports import MetadataSide

TakeTopics: TypeAlias = Callable[[tuple[MirrorTopic, ...], int], tuple[MirrorTopic, ...]]
NEVER_DUE: Final = 1 << 62
"""The version of a donor's registry: beyond every tidemark, so that nothing it lacks is ever dropped (INV-QM1)."""
_NEWEST: Final = LeaderEpoch((1 << 31) - 1)


def topics_as_told(
    topics: tuple[MirrorTopic, ...], _followed_version: int
) -> tuple[MirrorTopic, ...]:
    """Return the topics of a primary: what it says of them counts."""
    return topics


class NewerConfigs:
    """Gives a donor's topics the configs that they have here, where these are newer: a `TakeTopics` (INV-QM4).

    `version`: as of which version of the primary topics are here once what was returned last is carried out, -1: not known.
    """

    def __init__(self, metadata: MetadataSide, version: int) -> None:
        """Begin with topics that are here as of `version`."""
        self._metadata = metadata
        self.version = version

    def __call__(
        self, topics: tuple[MirrorTopic, ...], followed_version: int
    ) -> tuple[MirrorTopic, ...]:
        """Return `topics` as they are to be."""
        if not 0 <= followed_version < self.version:
            self.version = followed_version
            return topics
        here = {topic.topic_id: topic for topic in self._metadata.image.topics.values()}
        return tuple(
            dataclasses.replace(topic, configs=dict(here[topic.topic_id].configs))
            if topic.topic_id in here
            else topic
            for topic in topics
        )


class DonorPrimary:
    """Shows `primary`, which does not act, as one to copy from. `logs` are the candidate's own."""

    def __init__(self, primary: Primary, logs: MirrorLogs) -> None:
        """Connect to nothing yet."""
        self._primary = primary
        self._logs = logs

    def session(self) -> AbstractAsyncContextManager[tuple[PrimarySession, HandshakeDone]]:
        """Connect and make the handshake; raises `LinkFailed`."""
        return self._session()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[tuple[PrimarySession, HandshakeDone]]:
        async with self._primary.session() as (session, handshake):
            yield (
                _DonorSession(session, self._logs),
                dataclasses.replace(handshake, acting=True),
            )


class _UnderOneVersion:
    """A fetch that was sent; its answer names the registry's version as `registry` did."""

    def __init__(self, answer: Awaitable[FetchAnswer]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[object, None, FetchAnswer]:
        return self._renamed().__await__()

    async def _renamed(self) -> FetchAnswer:
        return dataclasses.replace(await self._answer, metadata_version=NEVER_DUE)


class _DonorSession:
    """One connection after its handshake to the donor."""

    def __init__(self, session: PrimarySession, logs: MirrorLogs) -> None:
        self._session = session
        self._logs = logs
        self._shorter: set[LogKey] = set()

    async def show_history(
        self, point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        # Where the donor's log is the shorter one, `check` has compared what both hold.
        compared = [log for log in shown if point != BEFORE_ALL or log.key not in self._shorter]
        found = await self._session.show_history(point, compared)
        if point == BEFORE_ALL:
            _refuse(found)
        return found

    async def registry(self) -> tuple[int, tuple[MirrorTopic, ...]]:
        _, topics = await self._session.registry()
        return NEVER_DUE, topics

    async def deletions(self, lost: Mapping[LogKey, int]) -> Sequence[UUID]:
        """Name none: a log with records that the donor has deleted already ends the session (T34)."""
        return ()

    async def check(self, logs: Mapping[LogKey, MirrorLogEnd]) -> Mapping[LogKey, PrimaryLogEnd]:
        """Return ends that agree with the candidate's, after the bytes of the shorter logs were compared (INV-QM2)."""
        asked = {key: MirrorLogEnd(_NEWEST, end.end_offset) for key, end in logs.items()}
        theirs = await self._session.check(asked)
        shorter = {
            key: end.end_offset
            for key, end in theirs.items()
            if end.end_offset < logs[key].end_offset
        }
        self._shorter |= shorter.keys()
        for keys in in_pieces(shorter):
            shown = await self._logs.evidence(Cut(BEFORE_ALL, shorter), keys)
            _refuse(await self._session.show_history(BEFORE_ALL, shown))
        return {
            key: PrimaryLogEnd(
                logs[key].leader_epoch,
                max(end.end_offset, logs[key].end_offset),
                end.log_start_offset,
            )
            for key, end in theirs.items()
        }

    def fetch(
        self, positions: Mapping[LogKey, int], forgotten: Sequence[LogKey]
    ) -> Awaitable[FetchAnswer]:
        return _UnderOneVersion(self._session.fetch(positions, forgotten))

    async def report_reached(self, point: TidemarkPoint, lag: Lag) -> None:
        """Say nothing: what is reached now counts for no mirror of the donor."""
        return


def _refuse(found: Sequence[HistoryDifference]) -> None:
    if found:
        named = ", ".join(difference.key.encode() for difference in found[:NAMED_MAX])
        raise LinkFailed(f"{len(found)} logs hold other bytes there than here ({named})")
