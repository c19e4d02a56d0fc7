"""One connection of a follower to the leader: questions out, answers to whoever drives the core, in order.

INV-RLN1 fetches are answered in the order in which they were sent, and checks among themselves
INV-RLN2 a leader that does not answer within `ANSWER_TIMEOUT_S`, refuses, or says what cannot be so, ends this

Not here: when to connect again, what is asked (`replica_following`).
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, NoReturn, Protocol

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX, MIB
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.replica_messages import (
    LOGS_CHECKED_AT_ONCE,
    AskedLog,
    CheckedReplicaLogs,
    CheckReplicaLogs,
    DurableReport,
    FoundLog,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaPart,
    names_of,
    places_of,
)
from region_broker.region.cluster.standing import StandingTowards
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from region_broker.replication.effects import CheckEpochs, SendFetch, SendReport
from region_broker.replication.events import LeaderLog
from region_broker.replication.facts import Drops, EpochEnd, EpochStart

FETCH_BYTES_MAX: Final = 4 * MIB
FETCH_WAIT_MS: Final = 500
ANSWER_TIMEOUT_S: Final = 10.0
assert FETCH_WAIT_MS * 5 < ANSWER_TIMEOUT_S * 1000, "a waiting fetch is no broken one"


class CannotBe(Exception):
    """The leader said what cannot be so, or what cannot be carried out here now: why."""


BREAKS: Final = (PeerUnreachable, PeerRefused, TimeoutError, CannotBe)


class Driver(Protocol):
    """Who is told what comes; each in one step, but for `checked`."""

    def let_in(self, line: "ReplicaLine") -> None:
        """The leader lets this member follow."""
        ...

    async def checked(self, line: "ReplicaLine", found: Mapping[LogKey, LeaderLog | None]) -> None:
        """A part of what was asked with `check` was answered; what is to be cut by it is cut, log by log (INV-ANC1)."""
        ...

    def fetched(
        self, line: "ReplicaLine", parts: list[tuple[ReplicaPart, memoryview]], *, acts: bool,
        takes_writes: bool,
    ) -> None:  # fmt: skip
        """A fetch was answered; `acts`, `takes_writes`: as `ReplicaFetched` says them."""
        ...

    @property
    def serves_readers(self) -> bool:
        """Whether consumers may be sent to this follower now."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether this follower's disk takes what is copied."""
        ...

    @property
    def taken_bytes_per_s(self) -> int:
        """How much this follower may be sent while it is not in sync (INV-RPA5)."""
        ...


class ReplicaLine:
    """See the module's head; `run` is its task."""

    def __init__(
        self,
        session: int,
        leader: Member,
        leader_epoch: LeaderEpoch,
        parts: LineParts,
        driver: Driver,
        lineage: int = 0,
    ) -> None:
        """Reach `leader` under `leader_epoch`, with logs that were cut by `lineage`."""
        self.session: Final = session
        self.is_let_in = False
        self._leader = leader
        self._leader_epoch = leader_epoch
        self._parts = parts
        self._driver = driver
        self._lineage = lineage
        self._client: NodeClient | None = None
        self._checks: asyncio.Queue[
            tuple[tuple[AskedLog, ...], Awaitable[tuple[CheckedReplicaLogs, memoryview]]]
        ] = asyncio.Queue()
        self._fetches: asyncio.Queue[Awaitable[tuple[ReplicaFetched, memoryview]]] = asyncio.Queue()

    async def run(self) -> str:
        """Connect, ask to follow, and hand on what comes; return why it ended."""
        address = self._parts.where(self._leader)
        if address is None:
            return f"nobody knows where node {self._leader} is"
        try:
            client = await NodeClient.connect(self._parts.network, address)
        except PeerUnreachable as error:
            return str(error)
        ended = await self._serve(client)
        if isinstance(ended, TimeoutError):
            return f"node {self._leader} did not answer within {ANSWER_TIMEOUT_S:.0f} s"
        return str(ended)

    async def _serve(self, client: NodeClient) -> Exception:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(client.run())
            try:
                identity = StandingTowards(self._parts.standing, self._leader)
                await client.handshake(identity, REPLICA)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    ask = CheckReplicaLogs(leader_epoch=self._leader_epoch, lineage=self._lineage)
                    await client.call(ask, CheckedReplicaLogs)
                self._client, self.is_let_in = client, True
                self._driver.let_in(self)
                return await self._until_over(client, tasks, serving)
            except BREAKS as error:
                return error
            finally:
                self.is_let_in = False
                client.close()
                serving.cancel()

    async def _until_over(
        self, client: NodeClient, tasks: asyncio.TaskGroup, serving: asyncio.Task[None]
    ) -> Exception:
        """Hand on answers of both kinds until one says that this is over; return what it was."""
        reading = [
            tasks.create_task(_outcome(self._take_checks())),
            tasks.create_task(_outcome(self._take_fetches())),
        ]
        try:
            await asyncio.wait([serving, *reading], return_when=asyncio.FIRST_COMPLETED)
            for task in reading:
                if task.done():
                    return task.result()
            return PeerUnreachable(client.ended or "", sent=True)
        finally:
            for task in reading:
                task.cancel()

    async def _take_checks(self) -> NoReturn:
        while True:
            asked, answer = await self._checks.get()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                checked, _ = await answer
            await self._driver.checked(self, _found(asked, checked))
            self._checks.task_done()

    async def _take_fetches(self) -> NoReturn:
        while True:
            answer = await self._fetches.get()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                fetched, attachment = await answer
            if not self._driver.has_room:
                # The answer has few logs, and ends the session: first whatever the comparison says, of each (INV-RFN9).
                await self._checks.join()
            self._driver.fetched(
                self, _parts_of(fetched, attachment), acts=fetched.acts, takes_writes=fetched.takes_writes
            )  # fmt: skip

    # -- questions -------------------------------------------------------------------------------

    def check(self, effect: CheckEpochs) -> None:
        """Ask where leader epochs end, in pieces; nothing once the connection has ended, as `run` tells."""
        client = self._open_client()
        asked = [
            AskedLog(key.topic_id, key.partition, leader_epoch)
            for key, leader_epoch in effect.asked.items()
        ]
        for start in range(0, len(asked), LOGS_CHECKED_AT_ONCE):
            if client.ended is not None:
                return
            piece = tuple(asked[start : start + LOGS_CHECKED_AT_ONCE])
            message = CheckReplicaLogs(
                leader_epoch=self._leader_epoch, logs=piece, lineage=self._lineage
            )
            self._checks.put_nowait((piece, client.begin(message, CheckedReplicaLogs)))

    def fetch(self, effect: SendFetch) -> None:
        """Ask for what is new; nothing once the connection has ended."""
        client = self._open_client()
        if client.ended is not None:
            return
        durable_ends, log_starts, lacking = (
            effect.durable_ends,
            effect.log_starts,
            effect.lacking,
        )
        if not effect.positions and (durable_ends or log_starts):
            # Ahead of the fetch, in the same write: a notice is taken in the step in which it comes, a request in a later one.
            self._report(durable_ends, log_starts, lacking)
            durable_ends, log_starts, lacking = {}, {}, None
        taken = self._driver.taken_bytes_per_s
        message = ReplicaFetch(
            leader_epoch=self._leader_epoch,
            positions=places_of(effect.positions),
            forgotten=tuple((key.topic_id, key.partition) for key in effect.forgotten),
            durable_ends=places_of(durable_ends),
            log_starts=places_of(log_starts),
            serves_readers=self._driver.serves_readers,
            lacking=names_of(lacking),
            bytes_max=FETCH_BYTES_MAX,
            wait_ms_max=FETCH_WAIT_MS,
            taken_bytes_per_s_max=None if taken == CATCH_UP_BYTES_PER_S_MAX else taken,
        )
        self._fetches.put_nowait(client.begin(message, ReplicaFetched))

    def report(self, effect: SendReport) -> None:
        """Say how far logs are durable, and where they start; nothing once the connection has ended."""
        self._report(effect.durable_ends, effect.log_starts, effect.lacking)

    def _report(
        self, durable_ends: Mapping[LogKey, int], log_starts: Mapping[LogKey, int],
        lacking: frozenset[LogKey] | None,
    ) -> None:  # fmt: skip
        self._open_client().notify(
            DurableReport(
                leader_epoch=self._leader_epoch,
                durable_ends=places_of(durable_ends),
                log_starts=places_of(log_starts),
                lacking=names_of(lacking),
            )
        )

    def _open_client(self) -> NodeClient:
        assert self._client is not None, "nobody asks before it is let in"
        return self._client


async def _outcome(taking: Awaitable[NoReturn]) -> Exception:
    try:
        return await taking
    except BREAKS as error:
        return error


def _found(
    asked: tuple[AskedLog, ...], checked: CheckedReplicaLogs
) -> dict[LogKey, LeaderLog | None]:
    """Return what was answered about each log that was asked for; raises `CannotBe`."""
    told = {found.key: found for found in checked.logs}
    logs: dict[LogKey, LeaderLog | None] = {}
    for each in asked:
        found = told.get(each.key)
        logs[each.key] = None if found is None else _leader_log(each, found)
    return logs


def _leader_log(asked: AskedLog, found: FoundLog) -> LeaderLog:
    if found.asked != asked.leader_epoch or found.leader_epoch > asked.leader_epoch:
        raise CannotBe(f"{found.key.encode()}: asked for {asked.leader_epoch}, was told {found}")
    end = EpochEnd(found.leader_epoch, found.end_offset)
    if found.held_to is not None and found.held_to > found.end_offset:
        raise CannotBe(f"{found.key.encode()}: an epoch's last batch ends behind it: {found}")
    starts = tuple(EpochStart(*each) for each in found.starts)
    drops = None if found.drops is None else Drops(*found.drops)
    return LeaderLog(found.asked, end, found.log_start_offset, starts, found.held_to, drops)


def _parts_of(
    fetched: ReplicaFetched, attachment: memoryview
) -> list[tuple[ReplicaPart, memoryview]]:
    """Cut the attachment into the parts that the answer names; raises `CannotBe` where they disagree."""
    parts: list[tuple[ReplicaPart, memoryview]] = []
    start = 0
    for part in fetched.parts:
        end = start + part.data_bytes
        if part.end_offset < part.position or (part.end_offset > part.position) != (end > start):
            raise CannotBe(
                f"{part.key.encode()}: {part.data_bytes} bytes for offsets {part.position} to {part.end_offset}"
            )
        parts.append((part, attachment[start:end]))
        start = end
    if start != len(attachment):
        raise CannotBe(f"an answer of {len(attachment)} bytes describes {start}")
    return parts
