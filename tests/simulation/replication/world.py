"""Three nodes, the metadata as one register, and connections between them that are late, break, and are heard of after that.

A driver is played as the contract of `region_broker.replication` has it, but for one thing: what comes of a session that has ended is given
to the cores all the same, which must leave it.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication import effects as out
from region_broker.replication import events as into
from region_broker.replication.facts import InSync
from region_broker.replication.following import HELD_BYTES_MAX, FollowingCore
from region_broker.replication.leading import LeadingCore, LeadingSettings
from tests.simulation.replication.choosing import choose
from tests.simulation.replication.disks import Row, SimDisk
from tests.simulation.replication.judge import Judge, violated

NODES: Final = (1, 2, 3)
KEYS: Final = tuple(LogKey(UUID(int=number), 0) for number in range(2))
"""The first logs; others are made meanwhile, and any may be deleted."""
LOGS_MAX: Final = 3
SETTINGS: Final = LeadingSettings(replica_lag_time_ms_max=1_000, proposal_pause_ms=50)


def least_of(key: LogKey) -> int:
    """Return `min.insync.replicas` of a log."""
    return 1 + (key.topic_id.int + 1) % 2


@dataclass
class Register:
    """What the metadata say of the group."""

    leader_epoch: LeaderEpoch
    leader: Member
    in_sync: frozenset[Member]
    version: int
    logs: tuple[LogKey, ...]
    fenced: frozenset[Member] = frozenset()

    def copy(self) -> "Register":
        return Register(**vars(self))


@dataclass
class Connection:
    """One session: `number` is the leader's, `session` the follower's."""

    number: int
    session: int
    follower: "Node"
    member: Member
    leader: Member
    leader_epoch: LeaderEpoch
    start_count: int
    """Which process of the follower it belongs to."""
    to_leader: deque[Any] = field(default_factory=deque)
    to_follower: deque[Any] = field(default_factory=deque)
    is_broken: bool = False
    positions: dict[LogKey, int] = field(default_factory=dict)
    told: dict[LogKey, tuple[int, int]] = field(default_factory=dict)
    waiting: int = 0
    """Fetches without an answer."""


class Node:
    """A process, and the driver of its cores."""

    def __init__(self, world: "World", disk: SimDisk) -> None:
        """Down at first."""
        self.world = world
        self.disk = disk
        self.is_up = False
        self.start_count = 0
        self.leading: LeadingCore | None = None
        self.led_epoch = LeaderEpoch(-1)
        self.older_ends: dict[LogKey, int] = {}
        """Where each log that it leads ended when it was opened."""
        self.following = FollowingCore()
        self.epoch_at_start = LeaderEpoch(-1)
        self.logs: tuple[LogKey, ...] = ()
        self.open_logs: list[LogKey] = []
        self.started: list[LogKey] = []
        """The logs of which the follower's core is to hear where they start now."""
        self.heard_epoch = LeaderEpoch(-1)
        self.stopped: set[LogKey] = set()
        """Logs that its disk refused while it led, until it is started anew."""

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start anew from the disk; the metadata let it in with the folder that it has."""
        self.is_up = True
        self.start_count += 1
        self.leading, self.following = None, FollowingCore()
        self.epoch_at_start = self.world.register.leader_epoch
        self.logs = ()
        self.stopped.clear()
        self.world.admit(self.disk.member)

    def crash(self) -> None:
        """End at once."""
        self.is_up, self.leading = False, None
        self.disk.crash(self.world.chance)
        self.world.cut_off(self)

    def learn(self) -> None:
        """Learn what the metadata say now."""
        register = self.world.register.copy()
        if self.stopped and register.leader_epoch > self.led_epoch:
            self.crash()  # somebody else leads: it is started anew, and has the log again
            return
        if self.leading is not None and register.leader_epoch > self.led_epoch:
            self.lead(into.LeaderEpochSeen(register.leader_epoch))
            self.leading = None
            for log in self.disk.logs.values():
                log.epochs.truncate_end(log.end)  # INV-E3
        news = tuple(key for key in register.logs if key not in self.logs)
        self._drop([key for key in self.disk.logs if key not in register.logs])
        self.logs = register.logs
        leads = register.leader == self.disk.member
        if self.leading is not None:
            self._open(news)
            self.lead(into.MembersFenced(register.fenced))
            self.lead(
                into.InSyncChanged(
                    register.leader_epoch, InSync(register.in_sync, register.version)
                )
            )
        elif leads and register.leader_epoch > max(self.epoch_at_start, self.led_epoch):
            self.follow(into.FollowLeader(register.leader_epoch, None))
            self._begin_to_lead(register)
        else:
            for key in news:
                self.follow(into.LogAdded(key, self.disk.log(key).local()))
            leader = None if leads else register.leader
            self.follow(into.FollowLeader(register.leader_epoch, leader))

    def _drop(self, keys: list[LogKey]) -> None:
        """Drop logs whose topics were deleted."""
        for key in keys:
            del self.disk.logs[key]
            if self.leading is not None:
                self._close(key)
                self.stopped.discard(key)
            else:
                self.follow(into.LogRemoved(key))

    def _close(self, key: LogKey) -> None:
        if key in self.open_logs:
            self.open_logs.remove(key)
            self.lead(into.LogClosed(key))

    def stop_log(self) -> None:
        """Let a log stop, as a leader's disk refuses it: nothing of it is written, synced or sent any more (INV-RPL9)."""
        if self.open_logs:
            key = self.world.chance.choice(self.open_logs)
            self.stopped.add(key)
            self.lead(into.LogsStopped(frozenset(self.stopped)))
            self._close(key)

    def _runs(self) -> list[LogKey]:
        return [key for key in self.logs if key not in self.stopped]

    def _begin_to_lead(self, register: Register) -> None:
        self.led_epoch = register.leader_epoch
        self.open_logs = []
        self.world.judge.leads(self.led_epoch, self.disk.member)
        self.leading = LeadingCore(
            self.disk.member,
            register.leader_epoch,
            InSync(register.in_sync, register.version),
            settings=SETTINGS,
            now_ms=self.world.now_ms,
        )
        for key in self.logs:
            self.disk.log(key).epochs.note(self.led_epoch, self.disk.log(key).end)
        self._open(self.logs)

    def _open(self, keys: tuple[LogKey, ...]) -> None:
        for key in keys:
            log = self.disk.log(key)
            self.open_logs.append(key)
            self.older_ends[key] = log.end
            opened = into.LogOpened(
                key, log.durable, log.end, log.high_watermark, least_of(key), log.start
            )
            self.lead(opened)

    # -- cores -----------------------------------------------------------------------------------

    def lead(self, event: into.LeaderEvent) -> None:
        """Step the leader's core, and carry out what it asks for."""
        core, judge = self.leading, self.world.judge
        assert core is not None
        self.heard_epoch = max(self.heard_epoch, getattr(event, "leader_epoch", self.led_epoch))
        for effect in core.step(event, self.world.now_ms):
            self.world.seen[type(effect).__name__] += 1
            if self.heard_epoch > self.led_epoch and not isinstance(effect, out.Deposed):
                violated("INV-RPJ4", f"{effect} of a leader that knows it is deposed")
            match effect:
                case out.HighWatermark(key, offset) if key in self.world.register.logs:
                    in_sync = len(core.in_sync.members)
                    left = offset <= self.older_ends[key]  # INV-RPL14
                    least = SETTINGS.min_in_sync if left else least_of(key)
                    judge.leader_moved(
                        self.led_epoch, self.disk, key, offset, in_sync=in_sync, least=least
                    )
                    self.disk.log(key).high_watermark = offset
                case out.LowWatermark(key, offset) if key in self.world.register.logs:
                    judge.deleted(self.disk, key, offset)
                case out.ProposeInSync():
                    self.world.proposals.append((self, effect))
                case _:
                    pass
        if not core.is_deposed and self.led_epoch == self.world.register.leader_epoch:
            for key in self.open_logs:
                if core.knows_latest(key):
                    judge.knows_latest(self.led_epoch, key, core.high_watermark(key))

    def follow(
        self, event: into.FollowerEvent, rows: dict[LogKey, list[Row]] | None = None
    ) -> None:
        """Step the follower's core, and carry out what it asks for; `rows` are those of an answer."""
        for effect in self.following.step(event, self.world.now_ms):
            self.world.seen[type(effect).__name__] += 1
            match effect:
                case out.Connect(session, leader, leader_epoch):
                    self.world.connect(self, session, leader, leader_epoch)
                case out.Disconnect(session):
                    self.world.disconnect(self, session)
                case (
                    out.CheckEpochs(session, _)
                    | out.SendFetch(session=session)
                    | out.SendReport(session=session)
                ):
                    self.world.send(self, session, effect)
                case _:
                    self._write(effect, rows or {})
        started, self.started = self.started, []
        if started:
            self.follow(into.LogsStartAt({key: self.disk.log(key).start for key in started}))

    def _write(self, effect: out.FollowerEffect, rows: dict[LogKey, list[Row]]) -> None:
        judge, disk = self.world.judge, self.disk
        match effect:
            case out.CutLog(key, to_offset):
                if to_offset < disk.log(key).high_watermark:
                    violated("INV-RPJ7", f"{disk.member} cuts below its HW, at {to_offset}")
                disk.log(key).cut(to_offset)
            case out.StartAt(key, offset):
                disk.log(key).start_at(offset)
                self.started.append(key)
            case out.DivergedBelowHighWatermark():
                violated("INV-RPJ7", f"{disk.member}: {effect}")
            case out.AppendSlices(slices):
                for part in slices:
                    disk.log(part.key).extend(part.position, rows[part.key])
            case out.HighWatermark(key, offset) if key in self.world.register.logs:
                judge.follower_moved(disk, key, offset)
                disk.log(key).high_watermark = offset
            case out.LogStart(key, offset):
                disk.log(key).start_from(offset)
                self.started.append(key)
            case _:
                pass

    # -- what happens ----------------------------------------------------------------------------

    def produce(self) -> None:
        """Append a record as a leader."""
        assert self.leading is not None
        if not self._runs():
            return
        key = self.world.chance.choice(self._runs())
        self.disk.log(key).append(Row(self.led_epoch, self.world.next_value()))

    def sync(self, share: float) -> None:
        """Sync some of the logs."""
        ends = {}
        for key in self._runs():
            log = self.disk.log(key)
            if log.durable < log.end and self.world.chance.random() < share:
                log.durable = ends[key] = log.end
        if not ends:
            return
        if self.leading is not None:
            self.lead(into.LogsDurable(ends))
        else:
            self.follow(into.LogsDurable(ends))

    def trim(self) -> None:
        """Delete some of what is committed, as a leader."""
        if not self._runs():
            return
        key = self.world.chance.choice(self._runs())
        log = self.disk.log(key)
        log.trim(self.world.chance.randint(log.start, max(log.start, log.high_watermark)))
        if self.leading is not None:
            self.lead(into.LogStartMoved(key, log.start))

    def tick(self) -> None:
        """Let the cores see the time."""
        if self.leading is not None:
            self.lead(into.Ticked())
        self.follow(into.Ticked())

    # -- a leader's side of a connection ---------------------------------------------------------

    def hear(self, connection: Connection, message: Any) -> None:
        """Take what a follower sent."""
        core = self.leading
        if core is None:
            connection.to_follower.append("refused")
            return
        number, member, leader_epoch = connection.number, connection.member, connection.leader_epoch
        match message:
            case "hello" if not connection.is_broken:
                self.lead(into.FollowerConnected(member, number, leader_epoch))
                is_taken = leader_epoch == self.led_epoch and not core.is_deposed
                connection.to_follower.append("welcome" if is_taken else "refused")
            case out.CheckEpochs(_, asked):
                answers = {
                    key: into.LeaderLog(
                        leader_epoch,
                        self.disk.log(key).history().end_of(leader_epoch),
                        self.disk.log(key).start,
                    )
                    if key in self.logs
                    else None
                    for key, leader_epoch in asked.items()
                }
                connection.to_follower.append(answers)
            case out.SendReport(_, durable_ends, log_starts):
                self.lead(
                    into.FollowerReport(member, number, leader_epoch, durable_ends, log_starts)
                )
            case out.SendFetch(_, positions, forgotten, durable_ends, log_starts):
                connection.positions.update(positions)
                for key in forgotten:
                    connection.positions.pop(key, None)
                connection.waiting += 1
                self.lead(
                    into.FollowerReport(member, number, leader_epoch, durable_ends, log_starts)
                )
            case _:
                pass

    def answer(self, connection: Connection) -> None:
        """Answer one fetch with what is new, synced here or not."""
        slices, rows = [], {}
        for key, position in connection.positions.items():
            if key not in self.logs or key in self.stopped:
                continue
            log = self.disk.log(key)
            if position < log.start:
                self.world.break_off(connection)
                return
            sent = log.rows[position : position + self.world.chance.randint(0, 3)]
            marks = log.high_watermark, log.start
            if sent or connection.told.get(key) != marks:
                rows[key] = [row for row in sent if row is not None]
                end = position + len(sent)
                # A log never starts beyond its end, as the driver has it.
                start = min(log.start, end)
                # Three records are much: the next fetch does not wait for their sync.
                data_bytes = len(sent) * (HELD_BYTES_MAX // 2 - 1)
                slices.append(into.Slice(key, position, end, log.high_watermark, start, data_bytes))
                connection.told[key] = marks
                connection.positions[key] = position + len(sent)
        connection.waiting -= 1
        connection.to_follower.append((tuple(slices), rows))


class World:
    """One life; `play` draws what happens."""

    def __init__(self, chance: random.Random) -> None:
        """All three nodes start, with empty logs, in one in-sync set."""
        self.chance = chance
        self.judge = Judge()
        self.now_ms = 0
        self.nodes = [Node(self, SimDisk(node_id)) for node_id in NODES]
        members = frozenset(node.disk.member for node in self.nodes)
        self.register = Register(LeaderEpoch(0), min(members), members, 1, KEYS)
        self.proposals: list[tuple[Node, out.ProposeInSync]] = []
        self.doubted: list[out.ProposeInSync] = []
        self.connections: list[Connection] = []
        self.broken: list[Connection] = []
        self.reported: deque[tuple[Connection, out.SendReport]] = deque(maxlen=60)
        """What leaders have heard, and may hear again."""
        self.wound_back: dict[Member, dict[LogKey, int]] = {}
        """Members with older copies of their folders, and where their logs had ended before."""
        self.seen: Counter[str] = Counter()
        """What has happened, for a test that asks whether lives are rich."""
        self.played: list[str] = []
        self._values = self._numbers = 0
        self._made = len(KEYS)
        for node in self.nodes:
            node.start()
        self.elect()

    def next_value(self) -> int:
        """Return a value that nobody has written yet."""
        self._values += 1
        return self._values

    # -- the metadata ----------------------------------------------------------------------------

    def admit(self, member: Member) -> None:
        """Let a node in with the folder that it has now."""
        self.register.fenced -= {member}

    def disk_of(self, member: Member) -> SimDisk | None:
        """Return the disk of a member, None where it is gone or was wound back."""
        disk = self.nodes[member.node_id - 1].disk
        return disk if disk.member == member and member not in self.wound_back else None

    def survivors(self) -> dict[Member, SimDisk]:
        """Return the members of the committed in-sync set that have their disks."""
        found = {member: self.disk_of(member) for member in self.register.in_sync}
        return {member: disk for member, disk in found.items() if disk is not None}

    def look(self) -> None:
        """Have the disks judged. One that was wound back counts again once it has caught up."""
        for member, ends in list(self.wound_back.items()):
            logs = self.nodes[member.node_id - 1].disk.logs
            missing = [key for key, end in ends.items() if key in logs and logs[key].durable < end]
            if not missing and self._holds_all(member):
                del self.wound_back[member]
        self.judge.look_at(self.survivors())

    def _holds_all(self, member: Member) -> bool:
        disk, committed = self.nodes[member.node_id - 1].disk, self.judge.committed
        return all(disk.log(key).holds(rows) for key, rows in committed.items())

    def elect(self, alive: frozenset[Member] | None = None) -> None:
        """Elect; a folder that was wound back is not let in (see `choosing`)."""
        register = self.register
        if alive is None:
            alive = frozenset(n.disk.member for n in self.nodes if n.is_up)
        preferred = sorted(register.in_sync)
        self.chance.shuffle(preferred)
        able = alive - self.wound_back.keys() - register.fenced
        election = choose(register.in_sync, able, preferred)
        if election is None:
            return
        register.leader_epoch = LeaderEpoch(register.leader_epoch + 1)
        register.leader = election.leader
        self._set(election.in_sync)
        self.judge.elected(register.leader_epoch)

    def _set(self, in_sync: frozenset[Member]) -> None:
        self.seen[f"from {len(self.register.in_sync)} to {len(in_sync)}"] += 1
        self.register.in_sync = in_sync
        self.register.version += 1
        named = self.named()
        self.wound_back = {who: ends for who, ends in self.wound_back.items() if who in named}

    def named(self) -> frozenset[Member]:
        """Return who is in sync, or would be by a proposal that may still be carried out."""
        return self.register.in_sync.union(*(wish.members for _, wish in self.proposals))

    def make_log(self) -> str | None:
        """Make a topic."""
        if len(self.register.logs) == LOGS_MAX:
            return None
        self._made += 1
        self.register.logs += (LogKey(UUID(int=self._made), 0),)
        return str(self._made)

    def delete_log(self) -> str | None:
        """Delete a topic."""
        if len(self.register.logs) < LOGS_MAX:
            return None
        key = self.chance.choice(self.register.logs)
        self.register.logs = tuple(each for each in self.register.logs if each != key)
        self.judge.committed.pop(key, None)
        self.judge.deleted_below.pop(key, None)
        return str(key.topic_id.int)

    def fence(self, node: Node) -> None:
        """Fence a node, dead or alive; it goes out of the set, unless it leads or is the last one."""
        member = node.disk.member
        self.register.fenced |= {member}
        rest = self.register.in_sync - {member}
        if rest and self.register.leader != member and self.chance.random() < 0.5:
            self._set(rest)

    def carry_out(self, index: int) -> None:
        """Carry a proposal out, or refuse it, and answer."""
        node, wish = self.proposals.pop(index)
        register = self.register
        added = wish.members - register.in_sync
        is_current = (wish.leader_epoch, wish.expected_version) == (
            register.leader_epoch,
            register.version,
        )
        is_able = not added & register.fenced and all(
            self.nodes[member.node_id - 1].disk.member == member for member in added
        )
        if is_current and is_able:
            self.seen["carried out late"] += wish in self.doubted
            self._set(wish.members)
        else:
            self.seen["refused"] += 1
            self.seen["of a deposed leader"] += wish.leader_epoch != register.leader_epoch
            if node.leading is not None and node.led_epoch == wish.leader_epoch:
                node.lead(into.ProposalEnded(wish.number, is_refused=True))

    def doubt(self, index: int) -> None:
        """Tell who proposed that nobody knows; it may be carried out later, or is lost."""
        node, wish = self.proposals[index]
        self.doubted.append(wish)
        if self.chance.random() < 0.5:
            del self.proposals[index]
        if node.leading is not None and node.led_epoch == wish.leader_epoch:
            node.lead(into.ProposalEnded(wish.number, is_refused=False))

    # -- connections -----------------------------------------------------------------------------

    def connect(self, node: Node, session: int, leader: Member, leader_epoch: LeaderEpoch) -> None:
        """Begin a session."""
        self._numbers += 1
        made = Connection(
            self._numbers, session, node, node.disk.member, leader, leader_epoch, node.start_count
        )
        made.to_leader.append("hello")
        self.connections.append(made)

    def send(self, node: Node, session: int, message: Any) -> None:
        """Send to the leader, if the connection is still there."""
        for connection in self.connections:
            if connection.follower is node and connection.session == session:
                connection.to_leader.append(message)

    def disconnect(self, node: Node, session: int) -> None:
        """End a session from the follower's side; the leader hears of it."""
        for connection in [
            c for c in self.connections if c.follower is node and c.session == session
        ]:
            self._bury(connection)
            self._tell_leader(connection)

    def break_off(self, connection: Connection) -> None:
        """Break a connection: both sides hear of it, in one order or the other."""
        self._bury(connection)
        sides = [self._tell_leader, self._tell_follower]
        self.chance.shuffle(sides)
        for tell in sides:
            tell(connection)

    def _bury(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            connection.is_broken = True
            self.broken = [*self.broken[-5:], connection]

    def cut_off(self, node: Node) -> None:
        """Break all connections of a node that died."""
        for connection in list(self.connections):
            if connection.follower is node or connection.leader.node_id == node.disk.node_id:
                self.break_off(connection)

    def _tell_leader(self, connection: Connection) -> None:
        node = self.nodes[connection.leader.node_id - 1]
        if node.is_up and node.leading is not None:
            node.lead(into.FollowerLost(connection.member, connection.number))

    def _tell_follower(self, connection: Connection) -> None:
        follower = connection.follower
        if follower.is_up and follower.start_count == connection.start_count:
            connection.follower.follow(into.ConnectionBroken(connection.session))

    def to_leader(self, connection: Connection) -> None:
        """Deliver the next message."""
        node = self.nodes[connection.leader.node_id - 1]
        if node.is_up:
            message = connection.to_leader.popleft()
            if isinstance(message, out.SendFetch | out.SendReport):
                report = out.SendReport(message.session, message.durable_ends, message.log_starts)
                self.reported.append((connection, report))
            node.hear(connection, message)
        elif not connection.is_broken:
            self.break_off(connection)

    def repeat_report(self) -> str:
        """Let a leader hear something again."""
        connection, report = self.chance.choice(self.reported)
        node = self.nodes[connection.leader.node_id - 1]
        if node.is_up and node.leading is not None:
            node.hear(connection, report)
        return f"{connection.number} {report}"

    def to_follower(self, connection: Connection) -> None:
        """Deliver the next message."""
        node, session = connection.follower, connection.session
        message = connection.to_follower.popleft()
        if not node.is_up or node.start_count != connection.start_count:
            return
        match message:
            case "refused":
                if not connection.is_broken:
                    self.break_off(connection)
            case "welcome":
                logs = {key: node.disk.log(key).local() for key in node.logs}
                node.follow(into.Connected(session, logs))
            case (slices, rows):
                node.follow(into.Fetched(session, slices), rows)
            case answers:
                node.follow(into.EpochsChecked(session, answers))
