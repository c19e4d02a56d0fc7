"""DeleteAcls (31), versions 1-3.  v1: pattern types (KIP-290).  v2: compact.  v3: user resources (KIP-373).

INV-HDA1 an answer tells TOLD_ACLS_MAX ACLs at most: a request whose filters mean more is refused before any goes
What goes is what was seen: where other access came between, it is looked at again (INV-ACC1). All filters of a request take effect together,
or none does. An ACL that two filters mean is told by both.
Source: AclApis.scala `handleDeleteAcls`, AclControlManager.java `deleteAcls`.
"""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.access.acl_filters import (
    NO_AUTHORIZER,
    SECURITY_DISABLED,
    AclFilter,
    Malformed,
    matching,
    told,
)
from region_broker.handlers.dispatch.access_changes import change_as_judged, refused_as
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import CLUSTER_DENIED, refusal
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import ACL_COUNT_MAX, Access, AccessChange, Acl
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

OPEN_FILTERS_MAX: Final = 100
"""How many filters of a request may mean several ACLs: each of those looks at all there are."""
TOLD_ACLS_MAX: Final = ACL_COUNT_MAX + ADMIN_ITEMS_MAX
"""How many ACLs an answer may tell: each that there is, and one more for each filter of a request. Only filters that mean the same ones have more."""

_TOO_MANY: Final = (
    f"the filters mean the same ACLs again and again: they may name {TOLD_ACLS_MAX} in all"
)


async def handle_delete_acls(ctx: RequestContext, request: Any) -> Fields:
    """Remove what each filter means, and say what it was."""
    check_count("DeleteAcls", len(request.filters))
    if not ctx.services.authorizer.in_force:
        return {"filter_results": [_row(SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.filters)}
    filters = await each_yielding(request.filters, _read, CooperativeYield())
    wide = sum(isinstance(each, AclFilter) and each.only is None for each in filters)
    if wide > OPEN_FILTERS_MAX:
        why = (
            f"{wide} filters may each mean several ACLs: at most {OPEN_FILTERS_MAX} in one request"
        )
        row = _row(ErrorCode.invalid_request, why)
        return {"filter_results": [row] * len(filters)}
    found, (error, text) = await _remove(ctx, request, filters)
    if error is CLUSTER_DENIED:
        return _on_error(ctx, request, error)
    results: list[Fields] = []
    yielding = CooperativeYield()
    for each, acls in zip(filters, found, strict=True):
        await yielding.row()
        if isinstance(each, str):
            results.append(_row(ErrorCode.invalid_request, each))
        else:
            rows = [] if error else await each_yielding(acls, _told, yielding)
            results.append(_row(error, text, rows))
    return {"filter_results": results}


def _read(asked: Any) -> AclFilter | str:
    try:
        return AclFilter.of(asked)
    except Malformed as malformed:
        return str(malformed)


async def _remove(
    ctx: RequestContext, request: Any, filters: Sequence[AclFilter | str]
) -> tuple[list[list[Acl]], tuple[ErrorCode, str | None]]:
    """Return what each filter means, and whether all of it went."""
    yielding = CooperativeYield()

    async def judge(access: Access) -> tuple[AccessChange | None, list[list[Acl]]] | ErrorCode:
        denied = refusal(ctx, request)
        if denied is not None:
            return denied
        found: list[list[Acl]] = []
        gone: dict[Acl, None] = {}
        told_count = 0
        for each in filters:
            acls = [] if isinstance(each, str) else await matching(access.acls, each, yielding)
            found.append(acls)
            told_count += len(acls)
            if told_count > TOLD_ACLS_MAX:
                return ErrorCode.invalid_request
            gone.update(dict.fromkeys(acls))
        return (AccessChange(acls_removed=tuple(gone)) if gone else None), found

    nothing: list[list[Acl]] = [[] for _ in filters]
    try:
        found = await change_as_judged(ctx.services, judge)
    except CommandRefused as refused:
        return nothing, refused_as(refused)
    except MetadataUnwritable as failed:
        return nothing, unwritten(failed)
    if isinstance(found, ErrorCode):
        return nothing, (found, _TOO_MANY if found is ErrorCode.invalid_request else None)
    return found, (ErrorCode.none, None)


def _row(error: int, text: str | None, rows: Sequence[Fields] = ()) -> Fields:
    return {"error_code": error, "error_message": text, "matching_acls": rows}


def _told(acl: Acl) -> Fields:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": int(acl.resource_type),
        "resource_name": acl.name,
        "pattern_type": int(acl.pattern_type),
        **told(acl),
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"filter_results": [_row(error_code, None)] * len(request.filters)}


API: Final = Api(
    31, "DeleteAcls", range(1, 4), handle_delete_acls, forward=True, on_error=_on_error
)
