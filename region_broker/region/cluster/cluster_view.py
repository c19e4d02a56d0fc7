"""A region of several nodes as its operators see it: nodes, who leads, the quorum, and what is not as it should be here.

INV-CVW1  what is told is what this node knows now, from memory; what only a leader can know is None elsewhere
INV-CVW2  a follower is ready while it follows somebody: it serves reads and passes on what it does not serve itself, also while it
          catches up
INV-CVW3  of logs, which there may be tens of thousands of, is told in pieces, and others are served in between

Not here: orders (`cluster_orders`), routes (`http_api`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership, NodeImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.handlers.dispatch.readers import ReaderCounts
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.region_groups import RegionGroups
from region_broker.wire.cooperative_yield import CooperativeYield

WATCH_MS: Final = 250
WITHOUT_QUORUM_MS_MAX: Final = 5_000
"""An election of the quorum passes in less; whoever knows no leader for so long says it."""
NOT_CONNECTED_MS_MAX: Final = 5_000
"""As above, for a follower that has no connection to the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewParts:
    """What is looked at. `follows`: whether this node has begun to follow; `damage`: what is damaged here and not mended;
    `waiting`: why logs that do not run are not copied again yet.
    """

    region: str
    me: Member
    clock: Clock
    metadata: MetadataStore
    partitions: PartitionTable
    groups: RegionGroups
    follows: Callable[[], bool]
    readers: ReaderCounts
    damage: Callable[[], str | None] = lambda: None
    waiting: Callable[[], Mapping[str, str]] = dict
    spread_waits: Callable[[], str] = str
    """Why leaders are not spread though they are to be (`spread_keeper`)."""
    http_scheme: str = "http"
    """What HTTP addresses of the cluster begin with."""


class ClusterView:
    """`run` keeps count of how long something has been missing; all else is read."""

    def __init__(self, parts: ViewParts) -> None:
        """Nothing is missing yet."""
        self.parts: Final = parts
        now_ms = parts.clock.monotonic_ms()
        self._quorum_ms = self._connected_ms = now_ms
        self._elections = 0
        self._leader_epoch = self._leader_epoch_now()

    def _leader_epoch_now(self) -> int:
        leadership = self.parts.metadata.image.leadership
        return -1 if leadership is None else leadership.leader_epoch

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self._look()
            await self.parts.clock.sleep_ms(WATCH_MS)

    def _look(self) -> None:
        now_ms = self.parts.clock.monotonic_ms()
        if self.parts.metadata.group.leader is not None:
            self._quorum_ms = now_ms
        if not self.parts.follows() or self.parts.groups.following.is_connected:
            self._connected_ms = now_ms
        present = self._leader_epoch_now()
        if present != self._leader_epoch:
            self._leader_epoch = present
            self._elections += 1

    # -- checks ----------------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Return whether this node follows a leader that is known (INV-CVW2)."""
        leadership = self.parts.metadata.image.leadership
        return self.parts.follows() and leadership is not None and leadership.leader is not None

    def quorum_problem(self) -> str | None:
        """Return why this node takes no part in the quorum, None where it does."""
        group = self.parts.metadata.group
        if not group.is_member:
            return (
                f"node {self.parts.me} is no member of the quorum: it was removed, or its folder displaced. Start it anew, and it"
                " asks to be taken in; remove it for good: tidemark cluster node remove"
            )
        silent_ms = self.parts.clock.monotonic_ms() - self._quorum_ms
        if group.leader is None and silent_ms > WITHOUT_QUORUM_MS_MAX:
            voters = ", ".join(str(each.node_id) for each in group.membership.voters)
            return (
                f"nobody leads the quorum for {silent_ms // 1000} s, as far as this node hears: most of its voters (nodes {voters})"
                " must run and reach each other"
            )
        return None

    def replication_problem(self) -> str | None:
        """Return why this follower copies nothing, None where it does, or leads."""
        if not self.follows or self.parts.groups.following.is_connected:
            return None
        silent_ms = self.parts.clock.monotonic_ms() - self._connected_ms
        if silent_ms <= NOT_CONNECTED_MS_MAX:
            return None
        leader = self._leadership().leader
        if leader == self.parts.me:
            return (
                f"this node was elected, and leads no more, as it hears no other node of its region for {silent_ms // 1000} s: most of"
                " its voters must run and reach each other"
            )
        error = self.parts.groups.following.state()["last_error"]
        return f"no connection to node {leader}, which leads, for {silent_ms // 1000} s: {error or 'it does not answer'}"

    def remark(self) -> str:
        """Return what is wrong elsewhere, or catches up here, although this node is ready; empty where nothing is."""
        leadership = self.parts.metadata.image.leadership
        if leadership is None:
            return ""
        if leadership.leader == self.parts.me and not self.follows:
            out = [
                str(node.node_id) for node in self._nodes() if node.member not in leadership.in_sync
            ]
            return f"not in sync with this node, which leads: nodes {', '.join(out)}" if out else ""
        if self.parts.me not in leadership.in_sync:
            still = ", and leads data groups meanwhile" if self.parts.groups.any_open else ""
            return f"this node is not in sync: it catches up{still}, and cannot be elected before it has"
        return ""

    # -- what is told ----------------------------------------------------------------------------

    def _nodes(self) -> list[NodeImage]:
        return [node for _, node in sorted(self.parts.metadata.image.nodes.items())]

    def _leadership(self) -> Leadership:
        leadership = self.parts.metadata.image.leadership
        assert leadership is not None, "this node has registered, so somebody has led (INV-MN4)"
        return leadership

    def describe(self) -> Mapping[str, Any]:
        """Return nodes, leadership, quorum, and what this node does (INV-CVW1)."""
        parts = self.parts
        leadership = parts.metadata.image.leadership
        followers, serving = parts.groups.standings(), parts.groups.leading.serving()
        return {
            "region": parts.region,
            "node_id": parts.me.node_id,
            "nodes": [
                _node_row(node, leadership, followers, serving, parts.http_scheme)
                for node in self._nodes()
            ],
            "awaited": [
                {
                    "node_id": each.node_id,
                    "kafka": each.kafka,
                    "peer": each.peer,
                    "http": f"{parts.http_scheme}://{each.http}",
                    "rack": each.rack,
                }
                for key, each in sorted(parts.metadata.image.added_nodes.items())
                if key not in parts.metadata.image.nodes
            ],
            "leadership": _leadership_row(leadership),
            "spread": {**self._spread(), "waiting": parts.spread_waits()},
            "quorum": self._quorum(),
            "here": {
                "leads": leadership is not None and leadership.leader == parts.me,
                "leads_groups": parts.groups.open_groups,
                "follows": self.follows,
                "in_sync": leadership is not None and parts.me in leadership.in_sync,
                "elections_seen": self._elections,
                "following": parts.groups.following.state() if parts.follows() else None,
                "serves_readers": parts.groups.following.readers.is_open,
                "readers_sent_away": parts.readers.sent_away,
                "copy_bytes_read": parts.readers.copy_bytes,
                "damage": parts.damage(),
                "stopped": self.stopped(),
                "no_room": parts.partitions.room.refusal,
            },
        }

    def _spread(self) -> dict[str, Any]:
        """Return how leaders are spread, and whether they are to be; `groups`: the data groups, none while one node leads all logs."""
        image, counts = self.parts.metadata.image, Counter[int]()
        spread = image.spread
        if spread is None:
            return {"wanted": image.spread_wanted, "groups": []}
        counts.update(spread.group_of(log.key) for log in self.parts.partitions)
        rows = [
            {"group": number, "preferred": spread.preferred[number], "partitions": counts[number], **_leadership_row(row)}
            for number, row in sorted(spread.groups.items())
        ]  # fmt: skip
        return {
            "wanted": image.spread_wanted,
            "groups": rows,
            "main_partitions": counts[MAIN_GROUP],
        }

    def stopped(self) -> dict[str, str]:
        """Return the logs that do not run here, each with why, and why it is not copied again yet."""
        waiting = self.parts.waiting()
        return {
            name: f"{why} ({waiting[name]})" if name in waiting else why
            for name, why in self.parts.partitions.failures().items()
        }

    def _quorum(self) -> dict[str, Any]:
        parts, facts = self.parts, self.parts.metadata.quorum
        now_ms = parts.clock.monotonic_ms()
        members = []
        for member in sorted((*facts.membership.voters, *facts.membership.learners)):
            known = facts.followers.get(member)
            own = member == facts.me
            members.append(
                {
                    "node_id": member.node_id,
                    "incarnation": str(member.incarnation),
                    "votes": member in facts.membership.voters,
                    "leads": member == facts.leader,
                    "matched_index": facts.last_index if own else known and known.matched_index,
                    "heard_ms_ago": 0 if own else known and now_ms - known.heard_ms,
                }
            )
        return {
            "leader": None if facts.leader is None else facts.leader.node_id,
            "http": self.http_of(None if facts.leader is None else facts.leader.node_id),
            "term": facts.term,
            "commit_index": facts.commit_index,
            "last_index": facts.last_index,
            "voters": [member.node_id for member in facts.membership.voters],
            "learners": [member.node_id for member in facts.membership.learners],
            "is_voter": facts.me in facts.membership.voters,
            "without_leader_ms": 0 if facts.leader is not None else now_ms - self._quorum_ms,
            "members": members,
        }

    def http_of(self, node_id: int | None) -> str | None:
        """Return the HTTP base URL of a node, None for one that is not registered."""
        node = None if node_id is None else self.parts.metadata.image.nodes.get(node_id)
        return (
            None
            if node is None
            else f"{self.parts.http_scheme}://{node.http_host}:{node.http_port}"
        )

    async def partitions(self, topic: str | None) -> list[dict[str, Any]]:
        """Return the logs of this node, of `topic` alone where one is given, with who leads them and who is in sync (INV-CVW3)."""
        image = self.parts.metadata.image
        nodes = [node.node_id for node in self._nodes()]
        by_topic: dict[str, dict[int, dict[str, Any]]] = {}
        yielding = CooperativeYield()
        for log in list(self.parts.partitions):
            await yielding.row()
            if topic is None or log.tp.topic == topic:
                row = _partition_row(log, nodes, image.leadership_of(log.key))
                by_topic.setdefault(log.tp.topic, {})[log.tp.partition] = row
        return [row for _, rows in sorted(by_topic.items()) for _, row in sorted(rows.items())]


def _partition_row(
    log: Partition, nodes: list[int], leadership: Leadership | None
) -> dict[str, Any]:
    row = _leadership_row(leadership)
    return {
        "topic": log.tp.topic,
        "partition": log.tp.partition,
        "leader": row["leader"],
        "replicas": nodes,
        "in_sync": row["in_sync"],
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "failed": log.failed,
    }


def _node_row(
    node: NodeImage, leadership: Leadership | None, followers: Mapping[Member, Mapping[str, Any]], serving: frozenset[Member],
    scheme: str,
) -> dict[str, Any]:  # fmt: skip
    known = followers.get(node.member, {})
    return {
        "node_id": node.node_id,
        "incarnation": str(node.incarnation),
        "life": str(node.life),
        "kafka": f"{node.kafka_host}:{node.kafka_port}",
        "peer": f"{node.peer_host}:{node.peer_port}",
        "http": f"{scheme}://{node.http_host}:{node.http_port}",
        "rack": node.rack,
        "feature_level": node.feature_level,
        "fenced": node.fenced,
        "draining": node.draining,
        "leads": leadership is not None and leadership.leader == node.member,
        "in_sync": leadership is not None and node.member in leadership.in_sync,
        "connected": known.get("connected"),
        "logs_behind": known.get("logs_behind"),
        "records_behind": known.get("records_behind"),
        "behind_ms": known.get("behind_ms"),
        "serves_readers": node.member in serving if known else None,
        "logs_stopped": known.get("logs_stopped"),
        "bytes_behind": known.get("bytes_behind"),
        "sent_bytes_per_s": known.get("sent_bytes_per_s"),
    }


def _leadership_row(leadership: Leadership | None) -> dict[str, Any]:
    if leadership is None:
        return {
            "leader": None, "leader_epoch": -1, "version": 0, "in_sync": [], "unclean": 0,
        }  # fmt: skip
    return {
        "leader": None if leadership.leader is None else leadership.leader.node_id,
        "leader_epoch": leadership.leader_epoch,
        "version": leadership.version,
        "in_sync": [member.node_id for member in leadership.in_sync],
        "unclean": leadership.unclean,
    }
