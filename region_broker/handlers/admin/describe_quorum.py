"""DescribeQuorum (55), versions 0-2: the quorum that keeps the region's metadata, as its leader knows it (KIP-595).

v1: when each replica was heard, and had the whole log (KIP-836).  v2: directory ids, which are the incarnations of members
(KIP-853), texts of errors, and where nodes are met.
Offsets are indexes of the quorum's log, which begins at 1; an end is that of the entry to come. A follower that lacks something
had the whole log at a time that nobody knows: -1. The rest is Kafka's: one topic and partition may be asked for, anything else is
UNKNOWN_TOPIC_OR_PARTITION. A node that does not lead the quorum asks the one that does, as Kafka's brokers do, for clients ask any;
NOT_LEADER_OR_FOLLOWER is what it answers where that one is not known, or not reached.
Source: KafkaApis.scala `forwardToController`, KafkaRaftClient.java `handleDescribeQuorumRequest`, LeaderState.java, RaftUtil.java.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from region_broker.controller.raft.entries import Member
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.nodes import KnownNode
from region_broker.handlers.dispatch.registry import Api, Fields, Written
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.wire.codec.answers import response_codec
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

KEY: Final = 55
_NAMES_NODES: Final = 2
_CORRELATION_ID_BYTES: Final = 4
_TOPIC: Final = "__cluster_metadata"
_PARTITION: Final = 0
_UNKNOWN: Final = -1


async def handle_describe_quorum(ctx: RequestContext, request: Any) -> Fields | Written:
    """Tell the quorum, or the one error for all that is asked."""
    topics = request.topics
    check_count("DescribeQuorum", sum(1 + len(topic.partitions) for topic in topics))
    asked = [(str(t.topic_name), int(p.partition_index)) for t in topics for p in t.partitions]
    if len(topics) != 1 or asked != [(_TOPIC, _PARTITION)]:
        return await _unknown(topics)
    facts = ctx.services.quorum()
    if not facts.leads and facts.leader is not None and not ctx.is_forwarded:
        answer = await _of_the_leader(ctx)
        if answer is not None:
            return _as_met(ctx, answer)
        facts = ctx.services.quorum()
    partition = _described(ctx, facts) if facts.leads else _not_leading(facts)
    return {
        "error_code": ErrorCode.none,
        "topics": [{"topic_name": _TOPIC, "partitions": [partition]}],
        "nodes": _nodes(ctx, facts) if facts.leads else [],
    }


async def _of_the_leader(ctx: RequestContext) -> bytes | None:
    """Return what the quorum's leader answers, None where it is not reached."""
    try:
        return await ctx.services.quorum_leader.forward(ctx, ctx.frame)
    except ForwardingFailed:
        return None


def _as_met(ctx: RequestContext, answer: bytes) -> Fields | Written:
    """Return the leader's answer, with where who asks here meets the voters: the leader was not told by which listener that one came."""
    if ctx.version < _NAMES_NODES or ctx.connection_state.met_at is None:
        return Written(answer)
    codec = response_codec(KEY, ctx.version)
    entity: Any = entity_reader(codec.entity)(answer, _CORRELATION_ID_BYTES + codec.flexible_header)[0]  # fmt: skip
    return {**asdict(entity), "nodes": _met(ctx, [node.node_id for node in entity.nodes])}


async def _unknown(topics: Any) -> Fields:
    yielding, rows = CooperativeYield(), []
    for topic in topics:
        await yielding.row()
        partitions = await each_yielding(topic.partitions, _unknown_partition, yielding)
        rows.append({"topic_name": topic.topic_name, "partitions": partitions})
    return {"error_code": ErrorCode.none, "topics": rows}


def _unknown_partition(asked: Any) -> Fields:
    text = "This server does not host this topic-partition."
    return _no(int(asked.partition_index), ErrorCode.unknown_topic_or_partition, text)


def _not_leading(facts: GroupFacts) -> Fields:
    who = "nobody is known to" if facts.leader is None else f"node {facts.leader.node_id} does"
    text = f"this node does not lead the quorum of its region, {who}"
    leader_id = _UNKNOWN if facts.leader is None else facts.leader.node_id
    told = {"leader_id": leader_id, "leader_epoch": facts.term}
    return {**_no(_PARTITION, ErrorCode.not_leader_or_follower, text), **told}


def _no(index: int, error: ErrorCode, text: str) -> Fields:
    """Return an error, with the defaults of the schema."""
    return {
        "partition_index": index, "error_code": error, "error_message": text, "leader_id": 0,
        "leader_epoch": 0, "high_watermark": 0, "current_voters": [], "observers": [],
    }  # fmt: skip


def _described(ctx: RequestContext, facts: GroupFacts) -> Fields:
    return {
        "partition_index": _PARTITION,
        "error_code": ErrorCode.none,
        "leader_id": facts.me.node_id,
        "leader_epoch": facts.term,
        "high_watermark": facts.commit_index + 1,
        "current_voters": [_replica(ctx, facts, each) for each in facts.membership.voters],
        "observers": [_replica(ctx, facts, each) for each in facts.membership.learners],
    }


def _replica(ctx: RequestContext, facts: GroupFacts, member: Member) -> Fields:
    clock, follower = ctx.services.clock, facts.followers.get(member)
    now_ms = clock.wall_ms()
    if member == facts.me:
        end, heard_ms, whole_ms = facts.last_index + 1, now_ms, now_ms
    elif follower is None:
        end, heard_ms, whole_ms = _UNKNOWN, _UNKNOWN, _UNKNOWN
    else:
        end = follower.matched_index + 1
        heard_ms = now_ms - (clock.monotonic_ms() - follower.heard_ms)
        whole_ms = heard_ms if follower.matched_index == facts.last_index else _UNKNOWN
    return {
        "replica_id": member.node_id,
        "replica_directory_id": member.incarnation,
        "log_end_offset": end,
        "last_fetch_timestamp": heard_ms,
        "last_caught_up_timestamp": whole_ms,
    }


def _nodes(ctx: RequestContext, facts: GroupFacts) -> list[Fields]:
    """Return the voters, and where clients meet each of them."""
    return _met(ctx, dict.fromkeys(each.node_id for each in facts.membership.voters))


def _met(ctx: RequestContext, ids: Iterable[int]) -> list[Fields]:
    known = {node.node_id: node for node in ctx.nodes.registered}
    return [
        {"node_id": node_id, "listeners": _listeners(ctx, known.get(node_id))} for node_id in ids
    ]


def _listeners(ctx: RequestContext, node: KnownNode | None) -> list[Fields]:
    if node is None:
        return []
    name = ctx.connection_state.listener or "PLAINTEXT"
    return [{"name": name, "host": node.kafka_host, "port": node.kafka_port}]


API: Final = Api(KEY, "DescribeQuorum", range(3), handle_describe_quorum)
