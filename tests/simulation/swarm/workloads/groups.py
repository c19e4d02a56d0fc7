"""Groups of both protocols: a member at each region and one that asks all, over a topic that is written to all the while.

Members commit plainly, or in the transactions of what they write.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from chaos.judges.groups import GroupHistory, judge_group
from tests.simulation.swarm.plain_writer import PlainWriter
from tests.simulation.swarm.processor import committed_offset
from tests.simulation.swarm.workloads.exact import (
    DONE,
    ExactClassicMember,
    ExactMember,
    ExactModernMember,
)
from tests.simulation.swarm.workloads.members import SESSION_MS, ClassicMember, Member, ModernMember
from tests.simulation.swarm.workloads.setting import End, Load, Setting, TopicPlan

PARTITIONS: Final = 3


class GroupLoad(Load):
    """One group. Each partition must get on: who owns it must be settled."""

    member: ClassVar[type[Member]]
    name: str

    def __init__(self, setting: Setting) -> None:
        """Let members that died be missed soon."""
        topic = TopicPlan(name=f"read-by-{self.name}", partitions=PARTITIONS)
        output = TopicPlan(name=f"made-by-{self.name}", partitions=PARTITIONS)
        super().__init__(topic, *([output] if issubclass(self.member, ExactMember) else []))
        names = list(setting.reach.regions)
        for region in setting.reach.regions.values():
            region.settings |= {
                "group_initial_rebalance_delay_ms": 300,
                "group_consumer_session_timeout_ms": SESSION_MS,
                "group_consumer_heartbeat_interval_ms": SESSION_MS // 3,
            }
        asked: Sequence[Sequence[str]] = [*([name] for name in names), names]
        self._members = [
            self.member(setting, f"member-{at}", who, f"{self.name}-group", topic.name)
            for at, who in enumerate(asked)
        ]
        for each in self._members:
            if isinstance(each, ExactMember):
                each.output = output.name
        self._writers = [
            PlainWriter(
                setting.reach.only(name := names[number % len(names)]), name, number,
                setting.drawn(), 4 * setting.pace_s, topic.name,
            )
            for number in range(PARTITIONS)
        ]  # fmt: skip
        self.clients += [*self._members, *self._writers]

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {f"{self._what(n)}": self._committed(n) for n in range(PARTITIONS)}

    def _what(self, partition: int) -> str:
        return f"{self.name} group in partition {partition}"

    def _committed(self, partition: int) -> int:
        return sum(c.partition == partition for each in self._members for c in each.commits)

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        told = "; ".join(
            f"{each.name} owns {sorted(each.positions)}, {each.last_error}"
            for each in self._members
        )
        return {self._what(n): told for n in range(PARTITIONS)}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {
            "lives of members": sum(each.lives + 1 for each in self._members),
            "ownerships": sum(len(each.tenures) for each in self._members),
            "refused as fenced": sum(each.fenced for each in self._members),
        }

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        topic = self.topics[0]
        committed: dict[str, list[int]] = {}
        for region in end.reach.regions:
            connection = await end.connect(region)
            committed[region] = [
                max(0, await committed_offset(connection, self._members[0].group, topic.name, n))
                for n in range(PARTITIONS)
            ]
            connection.close()
        log = await end.places(end.acting, topic.name, PARTITIONS)
        members = self._members
        run = GroupHistory(
            topic.name,
            [tenure for each in members for tenure in each.tenures],
            [commit for each in members for commit in each.commits],
            [seen for each in members for seen in each.seen],
            [sighting for each in members for sighting in each.processed],
            sorted((place.partition, place.offset, place.value) for place in log),
            committed,
            await self._made(end),
            [commit for each in members for commit in each.unanswered],
        )
        return judge_group(run, end.excuse)

    async def _made(self, end: End) -> Mapping[int, Sequence[str]] | None:
        if len(self.topics) == 1:
            return None
        made: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
        for number, record in await end.records(end.acting, self.topics[1].name, PARTITIONS):
            made[number].append((record.value or b"").decode().removeprefix(DONE.decode()))
        return made


class _Classic(ClassicMember):
    partitions = PARTITIONS


class _ExactClassic(ExactClassicMember):
    partitions = PARTITIONS


class ClassicGroupLoad(GroupLoad):
    """JoinGroup and so on."""

    member: ClassVar[type[Member]] = _Classic
    name = "classic"


class ModernGroupLoad(GroupLoad):
    """KIP-848."""

    member: ClassVar[type[Member]] = ModernMember
    name = "modern"


class ExactClassicGroupLoad(GroupLoad):
    """A classic group that processes in transactions."""

    member: ClassVar[type[Member]] = _ExactClassic
    name = "exact-classic"


class ExactModernGroupLoad(GroupLoad):
    """A group of KIP-848 that processes in transactions."""

    member: ClassVar[type[Member]] = ExactModernMember
    name = "exact-modern"
