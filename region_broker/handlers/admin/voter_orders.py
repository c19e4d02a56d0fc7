"""What orders to change the quorum's voters have in common: for which cluster, to which node, about which voter.

Source: KafkaRaftClient.java `handleAddVoterRequest`, `handleRemoveVoterRequest` (errors and their order); RaftUtil.java.
Not here: the orders themselves (`add_raft_voter`, `remove_raft_voter`).
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.controller.raft.entries import Member
from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext


def refused(error: ErrorCode, text: str | None) -> Fields:
    """Return the answer that says no."""
    return {"error_code": error, "error_message": text}


def problem_of_order(ctx: RequestContext, request: Any) -> Fields | None:
    """Return the answer to an order of another cluster, or to a node that does not lead; None if it is neither."""
    if request.cluster_id is not None and request.cluster_id != ctx.services.region.cluster_id:
        return refused(
            ErrorCode.inconsistent_cluster_id,
            f"this is a node of cluster {ctx.services.region.cluster_id}",
        )
    if not ctx.services.quorum().leads:
        return refused(
            ErrorCode.not_leader_or_follower, "this node does not lead the quorum of its region"
        )
    return None


def voter_of(request: Any) -> Member | None:
    """Return the voter that an order names; None where it is none, as in Kafka: no id, or no directory."""
    voter_id, directory_id = int(request.voter_id), request.voter_directory_id
    if voter_id < 0 or directory_id is None or directory_id == UUID(int=0):
        return None
    return Member(voter_id, directory_id)


def shown(voters: Iterable[Member]) -> str:
    """Return voters for people."""
    return ", ".join(f"{each.node_id} (directory {each.incarnation})" for each in voters)
