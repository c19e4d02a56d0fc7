"""The metadata of a region: commands go through the log of its quorum, the image is served from memory.

INV-M6   a command is in `image` only once it is committed in the log; what was refused is in neither. Whoever asked for it goes on
         in the very step in which it is there: nobody else sees a topic before its partitions are open. Who is cancelled
         meanwhile is let go when it is settled (INV-UB1); what must follow a command is carried to its end with it
INV-M13  a database whose position is not in the log belongs to another log, or that one is an older copy: neither is used; nor
         is one without a position that the log never came to: a version without log changed it meanwhile
INV-M16  who follows the image hears of each one in the step in which it is there, whoever asked for the change
INV-M19  a node of several whose log of the metadata has failed ends: it would tell clients for ever who led when it did, and they stay
         with a node that answers. One that is alone serves on: nobody else has what it serves
INV-M23  a command that is larger than an entry of the quorum's log may be is refused before anything waits for it: it would be asked for again
         and again, and whatever this node asks for behind it would wait; passed on to another node, it would be no message any more
INV-M15  what others of the region changed is told to `on_foreign` before it is in `image`, in the order of the log, and not before
         whoever asks here has gone on with what came before it; all that a snapshot brings is told so
INV-M20  whoever makes something ready for topics that come is waited for before they are in `image`, behind the commit: what is durable
         comes, now or at the next start. Entries that a start reads again, and snapshots, wait for nobody. The quorum goes on meanwhile (INV-RAP1);
         whoever asked here for what came before goes on with it first, up to `GONE_ON_MS_MAX`: it would open logs of a topic that grows by what comes
INV-M21  whoever marks what is about to go is waited for behind the commit, and before the database has forgotten it: a start that finds it
         there still reads the entry again, one that does not finds the mark. Entries that a start reads again, and snapshots, wait for nobody
INV-M25  a command of a region with several nodes is waited for no longer than `SETTLED_MS_MAX`, also where this member leads and has it in its log:
         1. The others' disks are full. They answer heartbeats, and take no command: the leader leads on, and nothing is committed.
         2. Whatever this node asks for waits behind the first command. One that is given up so is in the log: it takes effect once
         they have room, and the node hears of it as of others' (INV-M15), or another leader's log takes its place
Commands of one node are applied one after the other. The quorum of a region with one node is that node: its log lies in `quorum`
beside the database, and begins with what an older version had stored. In a region with several nodes whoever does not lead the
quorum passes its command on to whoever does, and sees in its own log what became of it; it wishes again, under the same id, until it
knows (INV-M14), or until it has waited too long.

The log path never waits for this store. Not here: Raft (`raft`), SQLite (`image_database`), what a command does
(`metadata_commands`), who votes (`membership_keeping`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import msgspec

from idempotency.identity import LeaderEpoch
from idempotency.ports import Chance, Clock
from region_broker.controller import metadata_commands
from region_broker.controller.audited_commands import audited
from region_broker.controller.feature_levels import (
    LED_SINCE_LEVEL,
    SUPPORTED,
    allows,
    refused_as_unknown,
)
from region_broker.controller.image_database import (
    ConnectSqlite,
    ImageDatabase,
    MetadataInDoubt,
    MetadataUnreadable,
    MetadataUnsettled,
    MetadataUnwritable,
    Stored,
    read_stored,
)
from region_broker.controller.leadership_rules import led_under
from region_broker.controller.membership_keeping import MembershipKeeping
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_machine import (
    Applied,
    MachineState,
    MetadataMachine,
    decode_state,
    encode_command,
    encode_state,
    encode_wish,
    fold,
)
from region_broker.controller.raft.durable import RaftStore, check_owner
from region_broker.controller.raft.effects import JoinAsked, PassedOn, ReadAsked, RoleChanged
from region_broker.controller.raft.entries import LogIndex, Member, Membership, SnapshotPoint, Term
from region_broker.controller.raft.failures import (
    Busy,
    Lost,
    NotLeader,
    RaftStoreDamaged,
    RaftStoreError,
    RaftStoreFailed,
    RaftStoreForeign,
    RaftStoreFull,
    Refused,
    WishFailed,
)
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.raft.group_setup import (
    SNAPSHOT_AFTER_BYTES,
    GroupSetup,
    Transport,
)
from region_broker.controller.raft.memberships import memberships_of
from region_broker.controller.raft.recovered import FOUNDED_TERM, Recovered, member_of, peek
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import RaftGroup
from region_broker.controller.raft.snapshot_file import Piece
from region_broker.limits import MIB
from region_broker.ports.disk import Disk
from region_broker.ports.unbroken import to_its_end
from region_broker.security.audit.trail import NO_AUDIT, AuditTrail

_log: Final = logging.getLogger("tidemark.metadata")

QUORUM_FOLDER: Final = "quorum"
_NOT_TAKEN: Final = (
    "this node leads the quorum, and most of its voters have not taken it: their disks may be full"
)
_FIRST: Final = (LogIndex(1), FOUNDED_TERM)
"""Where the snapshot stands that a log begins with: it came before all entries."""
_SETTINGS: Final = RaftSettings(payload_bytes_max=64 * MIB, uncommitted_bytes_max=80 * MIB)
"""A takeover names where it cuts each log: what the failover journal takes finds room here, or it would stop half way."""
_AFTER_A_RESTART: Final = "the metadata cannot be written, and whether the last change was is known after a restart: {why}"
_NOT_THIS_LOG: Final = (
    "{path} is what the log of the quorum had come to after entry {index} of term {term}, by member {member}, and {folder} {why}."
    " Give the whole data folder back as it was when the node stopped, all parts from one moment; or empty it: the node then"
    " joins the region that acts, and copies all from there."
)

_WITHOUT_LOG: Final = (
    "{path} was changed by a version of Tidemark that has no log of the quorum, after {folder} was begun: what is in that log"
    " was not in force then. Move {folder} away: a new log then begins with what the database holds. Or give the whole data"
    " folder back as it was when this version stopped last."
)


SETTLED_MS_MAX: Final = 10_000
"""How long a command of a region with several nodes is waited for."""
AGAIN_MS: Final = 100
"""After so long without news of it, a command is passed on again, then after twice as long, up to `AGAIN_MS_MAX`; and so often is a
quorum asked to be taken in."""
AGAIN_MS_MAX: Final = 1_000
GONE_ON_MS_MAX: Final = 1_000
"""How long what comes waits for somebody here to go on."""


@dataclass(frozen=True, slots=True)
class Life:
    """Who opens a store, with which ports; `levels`: the feature levels that its code knows."""

    member: Member
    disk: Disk
    clock: Clock
    chance: Chance
    levels: range = SUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How a node of a region with several reaches the others. `founds`: its folder began the region, so nobody takes it in.

    `hosts`: node ids of the region that may be asked to take this one in. `voters_max`: how many members vote.
    """

    transport: Transport
    hosts: tuple[int, ...]
    founds: bool
    voters_max: int = 3
    settings: RaftSettings = field(default_factory=RaftSettings)
    snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES
    on_role: Callable[[RoleChanged], None] = lambda _: None
    """Told in the step in which this member's role in the quorum changes."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Partitions of a topic that are about to be in the image; `topic`: with all that a node has a log of.

    `grows`: it had others before. A region of one node that mirrors opens logs of such a topic early (T15), by no command.
    """

    topic: TopicImage
    numbers: range
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Going:
    """A topic of which only the first `keeps` partitions are to stay, none where it is deleted."""

    topic: TopicImage
    keeps: int


async def _nothing_to_mark(_topics: Sequence[Going]) -> None:
    return


async def _nothing_to_make(_topics: Sequence[Coming]) -> None:
    return


class MetadataStore:
    """Holds the image of one region; `open` before use, `run` meanwhile, `close` after."""

    def __init__(
        self, life: Life, database: ImageDatabase, machine: MetadataMachine, group: RaftGroup, *,
        keeping: MembershipKeeping, cluster: Cluster | None = None,
    ) -> None:  # fmt: skip
        """Use `open`."""
        self._life = life
        self._database = database
        self._machine = machine
        self._group = group
        self._cluster = cluster
        self._keeping = keeping
        self._image = machine.current
        self._followers: list[Callable[[MetadataImage], None]] = []
        self._write_lock = asyncio.Lock()
        self._asked: dict[UUID, asyncio.Future[Applied]] = {}
        self._unseen: deque[Applied] = deque()
        self._settled_ms_max = SETTLED_MS_MAX
        self._patience: asyncio.Timeout | None = None
        """How long the command is waited for that this member has proposed."""
        self._all_seen = asyncio.Event()
        self._brought: set[UUID] = set()
        """Wishes of somebody here that a snapshot has settled, who has not gone on yet."""
        self.failed = ""
        """Why no command is taken any more, empty while they are."""
        self.on_foreign: Callable[[MetadataImage, MetadataImage], None] = lambda _old, _new: None
        """Called in the step in which `image` changes by what this node did not ask for (INV-M15)."""
        self.on_coming: Callable[[Sequence[Coming]], Awaitable[None]] = _nothing_to_make
        """Waited for before what it is told of is in `image` (INV-M20); it raises nothing."""
        self.on_going: Callable[[Sequence[Going]], Awaitable[None]] = _nothing_to_mark
        """Waited for before the database has forgotten what it is told of (INV-M21); it raises nothing."""
        self.audit: AuditTrail = NO_AUDIT
        """Told of each command that is asked for here; set where there is a trail."""
        machine.on_coming = self._make_ready
        machine.on_going = self._mark
        machine.on_applied = self._take_applied
        machine.on_loaded = self._take_loaded

    @classmethod
    async def open(
        cls, path: Path, life: Life, *, new_cluster_id: str, connect: ConnectSqlite | None = None,
        cluster: Cluster | None = None,
    ) -> Self:  # fmt: skip
        """Open or create the database at `path` and the log beside it; new ones belong to cluster `new_cluster_id`.

        With `cluster` nothing is applied before `run`, and the image is only what is known here, before `join`.
        Raises `MetadataUnreadable` where one of them is damaged, another's or newer than this code, `MetadataUnwritable` where
        the disk does not let them be opened.
        """
        async with AsyncExitStack() as given_up:
            database = await ImageDatabase.open(
                path, life.disk, new_cluster_id=new_cluster_id, connect=connect
            )
            given_up.push_async_callback(database.close)
            folder = path.with_name(QUORUM_FOLDER)
            machine = MetadataMachine(life.member, database, life.levels)
            try:
                found = peek(life.disk, folder)
                check_log(path, folder, database.stored, found)
                if cluster is None or cluster.founds:
                    _found(life, folder, database.stored.image)
                keeping = MembershipKeeping(1 if cluster is None else cluster.voters_max)
                group = RaftGroup(_setup(life, folder, cluster, keeping), machine)
                given_up.push_async_callback(group.close)
                if cluster is None:
                    await group.begin()
            except (RaftStoreError, msgspec.MsgspecError, OSError) as error:
                raise _told(folder, error) from error
            given_up.pop_all()
        return cls(life, database, machine, group, keeping=keeping, cluster=cluster)

    @property
    def image(self) -> MetadataImage:
        """The image after the last command that became durable, as far as it is known here."""
        return self._image

    @property
    def levels(self) -> range:
        """The feature levels that this code knows; that of the region is in `image`."""
        return self._life.levels

    @property
    def group(self) -> RaftGroup:
        """The quorum's group: what arrives from other members goes to its `request_handler`."""
        return self._group

    @property
    def quorum(self) -> GroupFacts:
        """The quorum whose log this is, as its member here knows it now."""
        return self._group.facts()

    def follow(self, take: Callable[[MetadataImage], None]) -> None:
        """Hand over the present image, and each later one as soon as it is there (INV-M16)."""
        self._followers.append(take)
        take(self._image)

    async def run(self) -> None:
        """Carry commands out until `close`; until this is called, who wants one does it itself, if it is alone.

        Raises `RaftStoreFailed` among others (INV-M19): the node has to end then.
        """
        try:
            if self._cluster is None:
                await self._group.run()
            else:
                await self._run_among_others()
        except RaftStoreFailed as error:
            self._fail(error)
            if self._cluster is not None:
                raise
            _log.error("no metadata is changed any more: %s", error)

    async def _run_among_others(self) -> None:
        failure: RaftStoreFailed | None = None
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keeping.run(self._group), name="membership")
            try:
                await self._group.run()
            except RaftStoreFailed as error:
                failure = error
            finally:
                keeping.cancel()
        if failure is not None:
            raise failure

    async def read_current(self) -> None:
        """Return once all is in `image` that was committed when this was called; this member must lead the quorum (ReadIndex).

        Raises `MetadataUnwritable` where it does not, or not any more.
        """
        try:
            await self._group.ask(ReadAsked)
        except WishFailed as error:
            raise MetadataUnwritable(f"the metadata cannot be read: {error}") from error

    def hasten(self, settled_ms_max: int) -> None:
        """Wait for commands no longer than this from now on, as the node is to stop: nodes that stop together have no quorum to wait for."""
        self._settled_ms_max = min(self._settled_ms_max, settled_ms_max)
        due_s = None if self._patience is None else self._patience.when()
        hastened_s = asyncio.get_running_loop().time() + settled_ms_max / 1000
        if self._patience is not None and due_s is not None and hastened_s < due_s:
            self._patience.reschedule(hastened_s)

    def stop(self) -> None:
        """Let `run` end."""
        self._group.stop()

    async def join(self) -> None:
        """Return once this member is in the membership, and asks the others for that until then; `run` must be running.

        What it knows of the membership may be old: 1. A node is stopped, and removed. 2. It is started again, and its log says that it
        is a member. 3. Nobody tells it that it is none, as nobody speaks to who is none. So who hears no leader asks, too.
        """
        assert self._cluster is not None, "who is alone has nobody to join"
        while not self._group.is_member or self._group.leader is None:
            self._ask_in(self._cluster)
            await self._life.clock.sleep_ms(AGAIN_MS)

    def _ask_in(self, cluster: Cluster) -> None:
        for node_id in cluster.hosts:
            # Whose folder a host has, its handshake says: it is asked as what it is, a node.
            cluster.transport.send_to_node(node_id, JoinAsked(self._group.term))

    async def apply(
        self, command: Command, *, in_term: Term | None = None, as_leader: bool = False
    ) -> MetadataImage:
        """Apply one command durably and return the new image; raises `CommandRefused`, `MetadataUnwritable`, `MetadataInDoubt`.

        After `MetadataUnwritable` nothing has changed, unless it is `MetadataInDoubt`: where the store has `failed`, the next start shows
        it, else it may take effect while this node runs. `in_term`: only while this member leads the quorum in that term, and once.
        `as_leader`: only while it leads the region's logs as it does in this step, however long it waits for others (INV-M22).
        """
        asked_in = self._image
        led_in = asked_in if as_leader else None
        return await audited(
            self.audit, asked_in, command, lambda: self._apply(command, in_term, led_in)
        )

    async def _apply(
        self, command: Command, in_term: Term | None, led_in: MetadataImage | None
    ) -> MetadataImage:
        if not allows(self._image.feature_level, command):  # INV-FL1; the level never goes down
            raise refused_as_unknown(self._image.feature_level, command)
        settings = _SETTINGS if self._cluster is None else self._cluster.settings
        encoded = encode_command(command, settings.payload_bytes_max)  # INV-M23
        led = None if led_in is None else self._led_under(led_in)
        async with self._write_lock:
            if self._cluster is None:
                metadata_commands.apply(self._image, command)  # INV-M6: refused here or nowhere
            if self.failed:
                raise MetadataInDoubt(_AFTER_A_RESTART.format(why=self.failed))
            wish_id = self._life.chance.uuid()
            settled = self._asked[wish_id] = asyncio.get_running_loop().create_future()
            work = self._wish(encode_wish(wish_id, encoded, led), settled, in_term)
            try:
                await to_its_end(work)
            except MetadataUnsettled:
                if not settled.done():
                    raise  # else it took effect in the very moment in which it was given up: the image is shown as the asker's own
            finally:
                del self._asked[wish_id]
                self._go_on(wish_id)
            assert settled.done(), "INV-M14: no two wishes have one id"
            applied = settled.result()
            if applied.refusal is not None:
                raise CommandRefused(applied.refusal.code, applied.refusal.reason)
            return self._image

    def _led_under(self, image: MetadataImage) -> LeaderEpoch | None:
        if image.feature_level < LED_SINCE_LEVEL:
            return None  # INV-FL1
        return led_under(image, self._life.member)

    async def _wish(
        self, payload: bytes, settled: asyncio.Future[Applied], in_term: Term | None
    ) -> None:
        """Return once `settled` is; raises `MetadataUnwritable`."""
        if self._cluster is None:
            try:
                await self._group.propose(payload)
            except (RaftStoreFull, Refused, Busy, NotLeader) as error:
                raise MetadataUnwritable(f"the metadata cannot be written: {error}") from error
            except (RaftStoreFailed, Lost) as error:
                raise MetadataInDoubt(self._fail(error)) from error
        elif in_term is not None:
            await self._wish_in(in_term, payload)
        else:
            await self._wish_again(payload, settled, self._cluster)

    async def _wish_in(self, term: Term, payload: bytes) -> None:
        if not self._group.leads or self._group.term != term:
            raise MetadataUnwritable(f"this member does not lead the quorum in term {term}")
        try:
            await self._propose(payload, self._settled_ms_max)
        except (RaftStoreFull, Refused, Busy, NotLeader) as error:
            raise MetadataUnwritable(f"the metadata cannot be written: {error}") from error
        except (RaftStoreFailed, Lost) as error:
            raise MetadataUnsettled(f"a change of the metadata is not settled: {error}") from error

    async def _wish_again(
        self, payload: bytes, settled: asyncio.Future[Applied], cluster: Cluster
    ) -> None:
        clock = self._life.clock
        began_ms = clock.monotonic_ms()
        why, again_ms = "nobody leads the quorum", AGAIN_MS
        while not settled.done():
            if self.failed:
                raise MetadataInDoubt(_AFTER_A_RESTART.format(why=self.failed))
            left_ms = began_ms + self._settled_ms_max - clock.monotonic_ms()
            if left_ms <= 0:
                raise MetadataUnsettled(
                    f"a change of the metadata is not settled ({why}): it may take effect later, or never. Look which nodes of the"
                    " region run: most of its voters must"
                )
            why = await self._wish_once(payload, cluster, left_ms) or why
            await asyncio.wait([settled], timeout=again_ms / 1000)
            again_ms = min(2 * again_ms, AGAIN_MS_MAX)

    async def _wish_once(self, payload: bytes, cluster: Cluster, left_ms: int) -> str:
        """Propose it here, or pass it on to whoever leads; return why that was nothing, as far as it is known at once."""
        leader = self._group.leader
        if leader is None:
            return "nobody leads the quorum"
        if leader != self._life.member:
            cluster.transport.send(leader, PassedOn(self._group.term, payload))
            return f"member {leader} leads the quorum, and does not settle it"
        try:
            await self._propose(payload, left_ms)
        except (RaftStoreFull, Refused, Busy, NotLeader, Lost) as error:
            return str(error)
        return ""

    async def _propose(self, payload: bytes, left_ms: int) -> None:
        """Propose it here, and wait for so long (INV-M25); raises as `RaftGroup.propose`, and Lost where it is not committed then."""
        try:
            async with asyncio.timeout(left_ms / 1000) as self._patience:
                await self._group.propose(payload)
        except TimeoutError as error:
            raise Lost(_NOT_TAKEN) from error
        finally:
            self._patience = None

    # -- what the log brings ---------------------------------------------------------------------

    def _take_applied(self, applied: list[Applied]) -> None:
        """See what the log says, up to what somebody here waits for, who goes on with it first (INV-M15)."""
        for each in applied:
            asked = self._asked.get(each.wish_id)
            if asked is not None and not asked.done():
                asked.set_result(each)
            self._unseen.append(each)
        self._see_on()

    async def _make_ready(self, image: MetadataImage) -> None:
        coming = coming_in(self._newest, image)
        if coming:
            await self._until_all_is_seen()
            await self.on_coming(coming)

    async def _mark(self, image: MetadataImage) -> None:
        going = going_in(self._newest, image)
        if going:
            await self._until_all_is_seen()
            await self.on_going(going)

    @property
    def _newest(self) -> MetadataImage:
        """The image after the last wish that the log brought, which is shown, or will be (INV-M15)."""
        return self._unseen[-1].image if self._unseen else self._image

    async def _until_all_is_seen(self) -> None:
        """Let whoever asked here go on with what was applied before (INV-M20).

        Not for ever: one whose wish is in the log twice may wait for the second time, which stands behind what waits here.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_ON_MS_MAX / 1000):
                while self._unseen:
                    self._all_seen.clear()
                    await self._all_seen.wait()

    def _take_loaded(self) -> None:
        """Go on from a leader's snapshot: what it brought was changed by others, or is what somebody here waits for.

        So is what was applied just before it, and whoever asked has not gone on with.
        """
        self._unseen.clear()
        waiting = False
        for wish_id, asked in self._asked.items():
            found = self._machine.became_of(wish_id)
            if found is not None:
                if not asked.done():
                    asked.set_result(found)
                self._unseen.append(found)
                self._brought.add(wish_id)
                waiting = True
        if not waiting:
            self._see(self._machine.current)

    def _go_on(self, wish_id: UUID) -> None:
        """Show whoever asked what its command made; what came behind is seen in a later step, when that one has gone on (INV-M15)."""
        if self._unseen and self._unseen[0].wish_id == wish_id:
            own = self._unseen.popleft()
            if wish_id in self._brought:  # a snapshot: what others changed is in it, too
                self._see(own.image)
            else:
                self._show(own.image)
        self._brought.discard(wish_id)
        asyncio.get_running_loop().call_soon(self._see_on)

    def _see_on(self) -> None:
        """See all up to the next wish of somebody here, who has not gone on yet."""
        while self._unseen and self._unseen[0].wish_id not in self._asked:
            self._see(self._unseen.popleft().image)
        if not self._unseen:
            self._all_seen.set()

    def _see(self, image: MetadataImage) -> None:
        if image is not self._image:
            self.on_foreign(self._image, image)
            self._show(image)

    def _show(self, image: MetadataImage) -> None:
        self._image = image
        for take in self._followers:
            take(image)

    def _fail(self, error: Exception) -> str:
        """Take no command any more, for the first reason that is known; return it."""
        self.failed = self.failed or str(error)
        return _AFTER_A_RESTART.format(why=self.failed)

    async def close(self) -> None:
        """Close log and database."""
        await self._group.close()
        await self._database.close()


def coming_in(old: MetadataImage, new: MetadataImage) -> list[Coming]:
    """Return the partitions of `new` that are not in `old`."""
    if old.topics is new.topics:
        return []
    coming = []
    for name, topic in new.topics.items():
        if old.topics.get(name) is topic:
            continue
        known = old.topic_by_id(topic.topic_id)
        if known is None:
            kept = topic.as_kept
            coming.append(Coming(kept, range(kept.partition_count)))
            continue
        first, kept = known.as_kept.partition_count, topic.as_kept
        if first < kept.partition_count:
            coming.append(Coming(kept, range(first, kept.partition_count), grows=True))
    return coming


def going_in(old: MetadataImage, new: MetadataImage) -> list[Going]:
    """Return what is in `old`, and not in `new`."""
    if old.topics is new.topics:
        return []
    going = []
    for name, topic in old.topics.items():
        if new.topics.get(name) is topic:
            continue
        left = new.topic_by_id(topic.topic_id)
        keeps = 0 if left is None else left.as_kept.partition_count
        if keeps < topic.as_kept.partition_count:
            going.append(Going(topic, keeps))
    return going


def _setup(
    life: Life, folder: Path, cluster: Cluster | None, keeping: MembershipKeeping
) -> GroupSetup:
    setup = GroupSetup(
        member=life.member, founders=Membership((life.member,)), disk=life.disk, folder=folder,
        clock=life.clock, chance=life.chance, settings=_SETTINGS,
    )  # fmt: skip
    if cluster is None:
        return setup
    return replace(
        setup,
        founders=Membership(()),
        transport=cluster.transport,
        settings=cluster.settings,
        snapshot_after_bytes=cluster.snapshot_after_bytes,
        on_joining=keeping.note_joining,
        on_leader=cluster.on_role,
        on_follower=cluster.on_role,
    )


def _found(life: Life, folder: Path, image: MetadataImage) -> None:
    """Begin the log of a quorum of one with `image` as its snapshot, where there is none; a start that ended here goes on.

    What is new begins at the newest feature level; what an older version wrote stays at the one that it has.
    """
    if image.version == 0:
        image = msgspec.structs.replace(image, feature_level=life.levels[-1])
    store, found = RaftStore.open(life.disk, folder, life.member)
    try:
        if found.snapshot is None:
            assert not found.entries, "a log of ours begins with a snapshot"
            snapshot = encode_state(MachineState(image))
            store.expect_room(2 * len(snapshot))
            point = SnapshotPoint(*_FIRST, Membership((life.member,)))
            store.keep_piece(Piece(point, 0, snapshot, last=True))
    finally:
        store.close()


def check_log(
    path: Path, folder: Path, stored: Stored, found: tuple[Member, Recovered] | None
) -> None:
    """Raise `MetadataUnreadable` unless the log may be the one that made what is stored (INV-M13)."""
    if stored.position is None:
        if found is not None and not _has_been(stored.image, found[1]):
            raise MetadataUnreadable(_WITHOUT_LOG.format(path=path, folder=folder))
        return
    member, index, term = stored.position.member, stored.position.index, stored.position.term
    if found is None:
        why = "is not there"
    elif found[0] != member:
        why = f"is the log of member {found[0]}"
    elif found[1].last_index < index:
        why = f"ends at entry {found[1].last_index}"
    elif found[1].term_at(index) not in {None, term}:
        why = f"has an entry of term {found[1].term_at(index)} there"
    else:
        return
    raise MetadataUnreadable(
        _NOT_THIS_LOG.format(
            path=path, index=index, term=term, member=member, folder=folder, why=why
        )
    )


def _has_been(image: MetadataImage, found: Recovered) -> bool:
    """Return whether the log came to `image` once, or began later than that."""
    if found.snapshot is None or image.version == 0:
        return True
    past = decode_state(found.snapshot[1])
    if image.version < past.image.version:
        return True
    for entry in found.entries:
        if past.image.version == image.version:
            break
        past, _ = fold(past, [entry])
    return past.image == image


def _told(folder: Path, error: Exception) -> Exception:
    """Return what a start says of an error of the log."""
    if isinstance(error, RaftStoreDamaged | RaftStoreForeign):
        return MetadataUnreadable(str(error))
    if isinstance(error, msgspec.MsgspecError):
        return MetadataUnreadable(
            f"{folder} holds what this version does not know ({error}): it was written by a newer one. Upgrade this node, or"
            " give it another data_dir."
        )
    return MetadataUnwritable(
        f"{folder} cannot be opened ({error}): that is no damage. Give the disk room, or mend it or its rights, and start the"
        " node again."
    )


def stored_image(path: Path, disk: Disk, member: Member | None = None) -> MetadataImage | None:
    """Return what the metadata at `path` came to, and change nothing; raises `MetadataUnreadable`, `MetadataUnwritable`.

    None where there is none yet, or one that a start would first migrate or recover. `member`: whose log it has to be.
    """
    stored = read_stored(path)
    if stored is None:
        return None
    folder = path.with_name(QUORUM_FOLDER)
    try:
        found = peek(disk, folder)
        check_log(path, folder, stored, found)
        if found is not None and member is not None:
            check_owner(folder, found[0], member)
        if found is None or found[1].snapshot is None:
            return stored.image
        return _folded(stored, found[1], decode_state(found[1].snapshot[1]))
    except (RaftStoreError, msgspec.MsgspecError, OSError) as error:
        raise _told(folder, error) from error


def _folded(stored: Stored, found: Recovered, state: MachineState) -> MetadataImage:
    """Return what a log came to: all of it where one member votes, else what is known to be committed."""
    assert found.snapshot is not None
    point, _ = found.snapshot
    memberships = [point.membership, *memberships_of(found.entries)]
    if any(len(each.voters) > 1 for each in memberships):
        return stored.image
    return fold(state, found.entries)[0].image


def incarnation_of(path: Path, disk: Disk) -> UUID | None:
    """Return the incarnation of whose log lies beside the database at `path`; None if there is none.

    Raises `MetadataUnreadable`, `MetadataUnwritable`.
    """
    folder = path.with_name(QUORUM_FOLDER)
    try:
        member = member_of(disk, folder)
    except (RaftStoreError, OSError) as error:
        raise _told(folder, error) from error
    return None if member is None else member.incarnation


def region_in_log(path: Path, disk: Disk) -> MetadataImage | None:
    """Return what the log of the quorum beside the database at `path` comes to, all of it, and change nothing; None if there is none.

    More than is known to be committed may be in it. Raises `MetadataUnreadable`, `MetadataUnwritable`.
    """
    folder = path.with_name(QUORUM_FOLDER)
    try:
        found = peek(disk, folder)
        if found is None or found[1].snapshot is None:
            return None
        return fold(decode_state(found[1].snapshot[1]), found[1].entries)[0].image
    except (RaftStoreError, msgspec.MsgspecError, OSError) as error:
        raise _told(folder, error) from error
