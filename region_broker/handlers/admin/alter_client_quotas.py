"""AlterClientQuotas (49), versions 0-1: sets and removes limits of entities (KIP-546).  v1: flexible.

Each entity answers for itself, and changes whole or not at all; those that are sound take effect in one step. An entity that is in the
request twice is refused both times. What Kafka refuses is INVALID_REQUEST, in its words; so are here NaN and infinity, which it takes,
and names of more than NAME_LENGTH_MAX characters. Host names are not resolved: an address is one of numbers.
Source: ClientQuotaControlManager.java.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.access_commands import ChangeAccess
from region_broker.controller.feature_levels import allows, refused_as_unknown
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.access_changes import change_as_judged, refused_as
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import refusal
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import Refused
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.security.access import Access, AccessChange, Quota, QuotaEntity
from region_broker.security.quotas.entities import QuotaRefused, altered, checked_entity, told
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_alter_client_quotas(ctx: RequestContext, request: Any) -> Fields:
    """Change the limits of each entity, or say why not; with `validate_only` only say whether it could be."""
    entries = request.entries
    named = sum(max(1 + len(entry.ops), len(entry.entity)) for entry in entries)
    check_count("AlterClientQuotas", named)
    try:
        refusals = await _change(ctx, request)
    except Refused as refused:
        return _on_error(ctx, request, refused.error, refused.text)
    return {"entries": [_row(entry, refusals.get(at)) for at, entry in enumerate(entries)]}


async def _change(ctx: RequestContext, request: Any) -> Mapping[int, str]:
    """Make the changes that are sound; return why the others are not, by their places. Raises `Refused`."""

    async def judge(access: Access) -> tuple[AccessChange | None, Mapping[int, str]] | ErrorCode:
        denied = refusal(ctx, request)
        if denied is not None:
            return denied
        refusals, quotas = await _planned(access.quotas_by_entity, request.entries)
        change = AccessChange(quotas_put=quotas)
        level = ctx.services.metadata.image.feature_level
        if quotas and not allows(level, ChangeAccess(change)):
            reason = refused_as_unknown(level, ChangeAccess(change)).reason
            raise Refused(ErrorCode.unsupported_version, reason)
        return (None if request.validate_only or not quotas else change), refusals

    try:
        made = await change_as_judged(ctx.services, judge)
    except CommandRefused as refused:
        raise Refused(*refused_as(refused)) from refused
    except MetadataUnwritable as failed:
        raise Refused(*unwritten(failed)) from failed
    if isinstance(made, ErrorCode):
        raise Refused(made, None)
    return made


async def _planned(
    present: Mapping[QuotaEntity, Mapping[str, float]], entries: Sequence[Any]
) -> tuple[dict[int, str], tuple[Quota, ...]]:
    """Return why entries are refused, by their places, and what the others come to."""
    refusals: dict[int, str] = {}
    entities: dict[int, QuotaEntity] = {}
    yielding = CooperativeYield()
    for at, entry in enumerate(entries):
        await yielding.row()
        try:
            entities[at] = checked_entity(
                (row.entity_type, row.entity_name) for row in entry.entity
            )
        except QuotaRefused as refused:
            refusals[at] = str(refused)
    times = Counter(entities.values())
    quotas: list[Quota] = []
    for at, entity in entities.items():
        await yielding.row()
        before = present.get(entity, {})
        try:
            if times[entity] > 1:
                raise QuotaRefused(f"Ignoring duplicate entity {told(entity)}")  # noqa: TRY301 -- one place answers
            after = altered(
                before,
                entity,
                [(op.key, None if op.remove else op.value) for op in entries[at].ops],
            )
        except QuotaRefused as refused:
            refusals[at] = str(refused)
            continue
        if after != before:
            quotas.append(Quota(entity, after))
    return refusals, tuple(quotas)


def _row(entry: Any, refusal: str | None) -> Fields:
    error = ErrorCode.none if refusal is None else ErrorCode.invalid_request
    return _answered(entry, error, refusal)


def _answered(entry: Any, error: int, text: str | None) -> Fields:
    named = [
        {"entity_type": row.entity_type, "entity_name": row.entity_name} for row in entry.entity
    ]
    return {"error_code": error, "error_message": text, "entity": named}


def _on_error(
    _ctx: RequestContext, request: Any, error_code: int, text: str | None = None
) -> Fields:
    return {"entries": [_answered(entry, error_code, text) for entry in request.entries]}


API: Final = Api(
    49, "AlterClientQuotas", range(2), handle_alter_client_quotas, forward=True, on_error=_on_error
)
