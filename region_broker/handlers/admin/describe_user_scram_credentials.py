"""DescribeUserScramCredentials (50), versions 0-0: there are no users, so a user who is asked for is not found.

All users are meant where none is named. Source: ScramImage.java `describe` (KIP-554).
"""

from collections import Counter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_describe_user_scram_credentials(_ctx: RequestContext, request: Any) -> Fields:
    """Answer for each name once."""
    check_count("DescribeUserScramCredentials", len(request.users or ()))
    yielding, rows = CooperativeYield(), []
    for name, times in Counter(str(user.name) for user in request.users or ()).items():
        await yielding.row()
        rows.append(_row(name, times))
    return {"error_code": ErrorCode.none, "error_message": "", "results": rows}


def _row(name: str, times: int) -> Fields:
    error, text = (
        ErrorCode.resource_not_found,
        "Attempt to describe a user credential that does not exist: ",
    )
    if times > 1:
        error = ErrorCode.duplicate_resource
        text = "Cannot describe SCRAM credentials for the same user twice in a single request: "
    return {"user": name, "error_code": error, "error_message": text + name, "credential_infos": []}


API: Final = Api(
    50, "DescribeUserScramCredentials", range(1), handle_describe_user_scram_credentials
)
