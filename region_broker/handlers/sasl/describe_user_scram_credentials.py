"""DescribeUserScramCredentials (50), versions 0-0: who can log in by SCRAM, by which mechanisms, and with how many iterations.

All users are meant where none is named. Users of a node's own file are not shown. Source: ScramImage.java `describe` (KIP-554).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.scram_mechanisms import NUMBERS
from region_broker.security.access import ScramKeys
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_describe_user_scram_credentials(ctx: RequestContext, request: Any) -> Fields:
    """Answer for each name once."""
    check_count("DescribeUserScramCredentials", len(request.users or ()))
    yielding, rows = CooperativeYield(), []
    by_user = await _by_user(ctx.services.metadata.image.access.keys, yielding)
    asked = Counter(str(user.name) for user in request.users or ()) or Counter(by_user.keys())
    for name, times in asked.items():
        await yielding.row()
        rows.append(_row(name, times, by_user.get(name, ())))
    return {"error_code": ErrorCode.none, "error_message": "", "results": rows}


async def _by_user(
    keys: Sequence[ScramKeys], yielding: CooperativeYield
) -> Mapping[str, Sequence[ScramKeys]]:
    found: dict[str, list[ScramKeys]] = {}
    for row in keys:
        await yielding.row()
        found.setdefault(row.user, []).append(row)
    return found


def _row(name: str, times: int, keys: Sequence[ScramKeys]) -> Fields:
    error, text = ErrorCode.none, None
    if times > 1:
        error = ErrorCode.duplicate_resource
        text = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif not keys:
        error = ErrorCode.resource_not_found
        text = f"Attempt to describe a user credential that does not exist: {name}"
    infos = [{"mechanism": NUMBERS[row.mechanism], "iterations": row.iterations} for row in keys]
    return {
        "user": name, "error_code": error, "error_message": text,
        "credential_infos": [] if error is not ErrorCode.none else infos,
    }  # fmt: skip


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    # With words, as Kafka. librdkafka 2.16 aborts its process at this answer all the same (docs/reference/clients.md).
    words = ErrorCode(error_code).name.replace("_", " ")
    return {"error_code": error_code, "error_message": words, "results": []}


def _lists_all(request: Any) -> bool:
    return not request.users


API: Final = Api(
    50, "DescribeUserScramCredentials", range(1), handle_describe_user_scram_credentials, lists=_lists_all,
    on_error=_on_error,
)  # fmt: skip
