"""CreateAcls (30), versions 1-3.  v1: pattern types (KIP-290).  v2: compact.  v3: user resources (KIP-373).

What is there already is no error. All good ones of a request take effect together, or none does.
Source: AclApis.scala `handleCreateAcls`, AclControlManager.java `validateNewAcl`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.access.acl_filters import (
    NO_AUTHORIZER,
    SECURITY_DISABLED,
    Malformed,
    known,
)
from region_broker.handlers.dispatch.access_changes import changed_while_allowed, refused_as
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import CLUSTER_DENIED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.security.access import (
    CLUSTER_NAME,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.authorizer import PrincipalRefused, checked_principal

ACL_TEXT_CHARS_MAX: Final = 1_000
"""How long a name, a principal or a host may be: each ACL is kept in memory, in all regions."""


async def handle_create_acls(ctx: RequestContext, request: Any) -> Fields:
    """Make each ACL, or say why not."""
    check_count("CreateAcls", len(request.creations))
    if not ctx.services.authorizer.in_force:
        return {"results": [_row(SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.creations)}
    made: list[Acl | str] = []
    for asked in request.creations:
        try:
            made.append(_acl(asked))
        except Malformed as malformed:
            made.append(str(malformed))
    good = tuple(each for each in made if isinstance(each, Acl))
    error, text = ErrorCode.none, None
    if good:
        error, text = await _make(ctx, request, good)
        if error is CLUSTER_DENIED:
            return _on_error(ctx, request, error)
    rows = [
        _row(error, text) if isinstance(each, Acl) else _row(ErrorCode.invalid_request, each)
        for each in made
    ]
    return {"results": rows}


async def _make(
    ctx: RequestContext, request: Any, acls: tuple[Acl, ...]
) -> tuple[ErrorCode, str | None]:
    try:
        denied = await changed_while_allowed(ctx, request, AccessChange(acls_added=acls))
    except CommandRefused as refused:
        return refused_as(refused)
    except MetadataUnwritable as failed:
        return unwritten(failed)
    return denied or ErrorCode.none, None


def _acl(asked: Any) -> Acl:
    """Return the ACL that is asked for; raises `Malformed`."""
    acl = Acl(
        known(ResourceType, int(asked.resource_type)),
        known(PatternType, int(asked.resource_pattern_type)),
        str(asked.resource_name),
        str(asked.principal),
        str(asked.host),
        known(Operation, int(asked.operation)),
        known(Permission, int(asked.permission_type)),
    )
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise Malformed(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.name:
        raise Malformed("Invalid empty resource name")
    if acl.resource_type is ResourceType.ANY:
        raise Malformed("Invalid resourceType ANY")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise Malformed(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation is Operation.ANY:
        raise Malformed("Invalid operation ANY")
    if acl.permission is Permission.ANY:
        raise Malformed("Invalid permissionType ANY")
    _check_texts(acl)
    return acl


def _check_texts(acl: Acl) -> None:
    try:
        checked_principal(acl.principal)
    except PrincipalRefused as refused:
        raise Malformed(str(refused)) from refused
    if not acl.host:
        raise Malformed("Invalid empty host: * stands for all")
    if max(len(acl.name), len(acl.principal), len(acl.host)) > ACL_TEXT_CHARS_MAX:
        raise Malformed(
            f"a name, a principal or a host of an ACL has {ACL_TEXT_CHARS_MAX} characters at most"
        )


def _row(error: int, text: str | None) -> Fields:
    return {"error_code": error, "error_message": text}


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"results": [_row(error_code, None)] * len(request.creations)}


API: Final = Api(
    30, "CreateAcls", range(1, 4), handle_create_acls, forward=True, on_error=_on_error
)
