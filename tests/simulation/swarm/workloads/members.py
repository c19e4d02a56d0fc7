"""Members of consumer groups: they join, are told what they own, process it, commit, leave or die.

A partition is given back when the member says so, and processed no more from then on. A connection that ends takes
nothing from a member: it goes on over another one, as real clients do. The order of heartbeat and commit is chance: a
member that was fenced meanwhile may try to commit first.

Classic: the rules of librdkafka and the Java client for eager assignors (rejoin gives everything back; ILLEGAL_GENERATION
and UNKNOWN_MEMBER_ID begin anew). KIP-848: Java's AbstractMembershipManager (a fenced member gives up all, and joins with
epoch 0 under its member id; after a lost answer all fields are sent again).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from typing_extensions import override

from chaos.judges.groups import NEVER, GroupCommit, OffsetSeen, Tenure
from chaos.story import Place, Sighting
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.swarm.processor import committed_offset
from tests.simulation.swarm.workloads.setting import Setting, Visitor, now_s

OFFSET_COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, MODERN = 8, 11, 12, 13, 14, 68
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 5_000
LEAVE_SHARE: Final = 0.03
DIE_SHARE: Final = 0.02
PROTOCOL: Final = "by-turns"
TAKEN_MAX: Final = 20
UNKNOWN: Final = -1
FENCED: Final = frozenset(
    {"illegal_generation", "unknown_member_id", "rebalance_in_progress", "fenced_instance_id",
     "stale_member_epoch", "fenced_member_epoch"}
)  # fmt: skip


class Member(Visitor):
    """What both protocols have in common. `lives` counts who it was: each life is a member of its own."""

    rest_s = 0.4

    def __init__(
        self, setting: Setting, name: str, regions: Sequence[str], group: str, topic: str
    ) -> None:
        """Ask some regions."""
        reach = setting.reach if len(regions) > 1 else setting.reach.only(regions[0])
        super().__init__(reach, f"{group}-{name}", setting.drawn())
        self.group, self.topic = group, topic
        self.tenures: list[Tenure] = []
        self.commits: list[GroupCommit] = []
        self.unanswered: list[GroupCommit] = []
        self.seen: list[OffsetSeen] = []
        self.processed: list[Sighting] = []
        self.positions: dict[int, int] = {}
        """What it owns, and where it is there."""
        self.member_id, self.epoch, self.lives = "", -1, 0
        self.fenced = 0
        self._open: dict[int, int] = {}

    @property
    def label(self) -> str:
        """Return who it is now."""
        return f"{self.name}.{self.lives}"

    def own(self, partition: int) -> None:
        """Have a partition from now on."""
        self._open[partition] = len(self.tenures)
        self.tenures.append(Tenure(self.label, partition, self.epoch, now_s(), region=self.region))
        self.positions[partition] = UNKNOWN

    def give_back(self, partitions: Sequence[int]) -> None:
        """Have them no more."""
        for partition in partitions:
            at = self._open.pop(partition)
            self.tenures[at] = replace(self.tenures[at], to_s=now_s())
            del self.positions[partition]

    def begin_anew(self) -> None:
        """Be another member from now on."""
        self.give_back(list(self.positions))
        self.member_id, self.epoch = "", -1
        self.lives += 1

    @override
    async def step(self, connection: Connection) -> None:
        try:
            if not self.member_id or self.epoch < 0:
                await self.join(connection)
            elif self.chance.random() < LEAVE_SHARE:
                await self.leave(connection)
                self.begin_anew()
            elif self.chance.random() < DIE_SHARE:
                self.begin_anew()
            else:
                for work in self.chance.sample([self.beat, self._work], 2):
                    await work(connection)
        except Refused as refused:
            if refused.code.name == "offset_out_of_range":
                self.positions = dict.fromkeys(self.positions, UNKNOWN)
            elif refused.code.name in FENCED:
                self.fenced += 1
                self.on_fenced(refused.code.name)
            else:
                raise

    @override
    async def run(self) -> None:
        await super().run()
        self.give_back(list(self.positions))

    async def committed(self, connection: Connection, partition: int) -> int:
        """Return where to go on."""
        asked_s = now_s()
        offset = await committed_offset(connection, self.group, self.topic, partition)
        self.seen.append(OffsetSeen(partition, offset, asked_s, now_s(), self.region))
        return max(0, offset)

    async def _work(self, connection: Connection) -> None:
        for at, partition in enumerate(list(self.positions)):
            if at > 0:
                await self.beat(
                    connection
                )  # a disk may be slow: real clients say so beside their work
            if partition not in self.positions:
                continue
            if self.positions[partition] == UNKNOWN:
                self.positions[partition] = await self.committed(connection, partition)
            position = self.positions[partition]
            reader = Reader(self.topic, partition + 1, committed=True)
            reader.positions = {partition: position}
            await reader.read(connection)
            taken = reader.records[:TAKEN_MAX]
            if not taken:
                continue
            self.processed += [
                Sighting(now_s(), self.region, Place(self.topic, at, offset, value.decode()), True)
                for at, offset, value in taken
            ]
            whole = len(taken) == len(reader.records)
            after = reader.positions[partition] if whole else taken[-1][1] + 1
            await self.finish(connection, partition, [value for *_, value in taken], after)
            self.positions[partition] = after

    async def finish(
        self, connection: Connection, partition: int, _values: Sequence[bytes], offset: int
    ) -> None:
        """Commit where it goes on, behind these values."""
        sent = GroupCommit(self.label, partition, offset, now_s(), NEVER, self.region)
        self.unanswered.append(sent)
        row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1,
               "committed_metadata": ""}  # fmt: skip
        answer = await connection.call(
            OFFSET_COMMIT, 9,
            {"group_id": self.group, "generation_id_or_member_epoch": self.epoch,
             "member_id": self.member_id, "group_instance_id": None,
             "topics": [{"name": self.topic, "partitions": [row]}]},
        )  # fmt: skip
        self.unanswered.remove(sent)
        code = answer.topics[0].partitions[0].error_code
        if code.value:
            raise Refused("OffsetCommit", code)
        self.commits.append(replace(sent, acked_s=now_s()))

    async def join(self, connection: Connection) -> None:
        """Become a member, or stay to become one."""
        raise NotImplementedError

    async def beat(self, connection: Connection) -> None:
        """Say that it lives; raises `Refused` where it is fenced."""
        raise NotImplementedError

    async def leave(self, connection: Connection) -> None:
        """Say that it goes."""
        raise NotImplementedError

    def on_fenced(self, why: str) -> None:
        """Give up what a fenced member has lost."""
        raise NotImplementedError


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the leader deals partitions out by turns."""

    partitions = 0

    @override
    def on_fenced(self, why: str) -> None:
        self.give_back(list(self.positions))
        self.epoch = -1
        if why in {"unknown_member_id", "fenced_instance_id"}:
            self.begin_anew()

    @override
    async def join(self, connection: Connection) -> None:
        answer = await connection.call(
            JOIN, 5,
            {"group_id": self.group, "session_timeout": SESSION_MS, "rebalance_timeout": REBALANCE_MS,
             "member_id": self.member_id, "group_instance_id": None, "protocol_type": "simulated",
             "protocols": [{"name": PROTOCOL, "metadata": b""}]},
        )  # fmt: skip
        if answer.error_code.name == "member_id_required":
            self.member_id = answer.member_id
            return await self.join(connection)
        if answer.error_code.value:
            raise Refused("JoinGroup", answer.error_code)
        self.member_id = answer.member_id
        members = sorted(each.member_id for each in answer.members)
        dealt = [
            {"member_id": member,
             "assignment": b",".join(b"%d" % p for p in range(self.partitions)[at :: len(members)])}
            for at, member in enumerate(members)
        ]  # fmt: skip
        synced = await connection.call(
            SYNC, 3,
            {"group_id": self.group, "generation_id": answer.generation_id,
             "member_id": self.member_id, "group_instance_id": None, "assignments": dealt},
        )  # fmt: skip
        if synced.error_code.value:
            raise Refused("SyncGroup", synced.error_code)
        self.epoch = answer.generation_id
        owned = [int(each) for each in bytes(synced.assignment).split(b",") if each]
        for partition in owned:
            self.own(partition)
        return None

    @override
    async def beat(self, connection: Connection) -> None:
        answer = await connection.call(
            HEARTBEAT, 3,
            {"group_id": self.group, "generation_id": self.epoch, "member_id": self.member_id,
             "group_instance_id": None},
        )  # fmt: skip
        if answer.error_code.value:
            raise Refused("Heartbeat", answer.error_code)

    @override
    async def leave(self, connection: Connection) -> None:
        row = {"member_id": self.member_id, "group_instance_id": None}
        self.give_back(list(self.positions))
        answer = await connection.call(LEAVE, 3, {"group_id": self.group, "members": [row]})
        if answer.error_code.value:
            raise Refused("LeaveGroup", answer.error_code)


class ModernMember(Member):
    """ConsumerGroupHeartbeat (KIP-848); the coordinator assigns."""

    @override
    def begin_anew(self) -> None:
        super().begin_anew()
        self._changed = True

    @override
    def gave_up(self) -> None:
        self._changed = True

    @override
    def on_fenced(self, why: str) -> None:
        if why != "stale_member_epoch":  # a heartbeat is under way that will tell the newer one
            self.give_back(list(self.positions))
            self.epoch = -1

    @override
    async def join(self, connection: Connection) -> None:
        if not self.member_id:
            self.member_id = str(UUID(int=self.chance.getrandbits(128), version=4))
        await self._say(connection, 0)

    @override
    async def beat(self, connection: Connection) -> None:
        await self._say(connection, self.epoch)

    @override
    async def leave(self, connection: Connection) -> None:
        self.give_back(list(self.positions))
        await self._call(connection, -1, None)

    async def _call(self, connection: Connection, epoch: int, owned: Any) -> Any:
        full = epoch == 0 or self._changed
        answer = await connection.call(
            MODERN, 1,
            {"group_id": self.group, "member_id": self.member_id, "member_epoch": epoch,
             "instance_id": None, "rack_id": None, "rebalance_timeout": REBALANCE_MS if full else -1,
             "subscribed_topic_names": (self.topic,) if full else None,
             "subscribed_topic_regex": None, "server_assignor": None,
             "topic_partitions": owned if full else None},
        )  # fmt: skip
        if answer.error_code.value:
            raise Refused("ConsumerGroupHeartbeat", answer.error_code)
        return answer

    async def _say(self, connection: Connection, epoch: int) -> None:
        owned = self._topic_rows() if self.positions else ()
        answer = await self._call(connection, epoch, owned)
        self._changed = False
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return
        rows = answer.assignment.topic_partitions
        target = {partition for row in rows for partition in row.partitions}
        for row in rows:
            self._topic_id = row.topic_id
        revoked, added = self.positions.keys() - target, sorted(target - self.positions.keys())
        self.give_back(sorted(revoked))
        self._changed = bool(revoked or added)
        for partition in added:
            self.own(partition)

    def _topic_rows(self) -> Any:
        return ({"topic_id": self._topic_id, "partitions": tuple(sorted(self.positions))},)

    _changed = True
    _topic_id: UUID
