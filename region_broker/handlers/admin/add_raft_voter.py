"""AddRaftVoter (80), versions 0-0: another voter of the quorum, which joins by itself here (KIP-853).

Kafka's errors come first, in their order; an order that it would carry out is INVALID_REQUEST.
Source: KafkaRaftClient.java `handleAddVoterRequest`, AddVoterHandler.java.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.admin.voter_orders import problem_of_order, refused, shown, voter_of
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_add_raft_voter(ctx: RequestContext, request: Any) -> Fields:
    """Refuse, and say why."""
    problem = problem_of_order(ctx, request)
    if problem is not None:
        return problem
    voter = voter_of(request)
    if voter is None:
        text = "Add voter request didn't include a valid voter"
        return refused(ErrorCode.invalid_request, text)
    if not request.listeners:
        text = "Add voter request didn't include an endpoint at which the voter is met"
        return refused(ErrorCode.invalid_request, text)
    voters = ctx.services.quorum().membership.voters
    if voter.node_id in {each.node_id for each in voters}:
        return refused(
            ErrorCode.duplicate_voter,
            f"The voter id for {shown([voter])} is already part of the set of voters {shown(voters)}.",
        )
    return refused(
        ErrorCode.invalid_request,
        "the voters of a region's quorum are the nodes of its configuration: name the node there and start it, and it joins and"
        " votes by itself once it has the log",
    )


API: Final = Api(80, "AddRaftVoter", range(1), handle_add_raft_voter)
