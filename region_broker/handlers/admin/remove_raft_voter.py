"""RemoveRaftVoter (81), versions 0-0: a voter that leaves the quorum, which the only one cannot (KIP-853).

A voter is a node and its directory (a member's incarnation): the same node with another directory is VOTER_NOT_FOUND.
Source: KafkaRaftClient.java `handleRemoveVoterRequest`, RemoveVoterHandler.java, VoterSet.java `removeVoter`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.admin.voter_orders import problem_of_order, refused, shown, voter_of
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_remove_raft_voter(ctx: RequestContext, request: Any) -> Fields:
    """Refuse, and say why."""
    problem = problem_of_order(ctx, request)
    if problem is not None:
        return problem
    voter = voter_of(request)
    if voter is None:
        text = "Remove voter request didn't include a valid voter"
        return refused(ErrorCode.invalid_request, text)
    voters = ctx.services.quorum().membership.voters
    if voter not in voters:
        return refused(
            ErrorCode.voter_not_found,
            f"Cannot remove voter {shown([voter])} from the set of voters {shown(voters)}",
        )
    return refused(
        ErrorCode.invalid_request,
        f"node {voter.node_id} votes for as long as it is a node of its region: stop it, and take it out with tidemark cluster node"
        f" remove {voter.node_id}. The last one cannot be taken out",
    )


API: Final = Api(81, "RemoveRaftVoter", range(1), handle_remove_raft_voter)
