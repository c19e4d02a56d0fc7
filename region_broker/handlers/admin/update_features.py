"""UpdateFeatures (57), versions 0-2: raises the feature level of the region, `tidemark.version` (KIP-584, ADR 52).

v0: downgrades are allowed or not.  v1: kinds of upgrade, validate only (KIP-778).  v2: no rows for each feature.
A level that is in force is no change. The other features are at the level that this version works at, and stay there, and no level is
lowered: FEATURE_UPDATE_FAILED. All that Kafka refuses is INVALID_UPDATE_VERSION, in its words, and so is a level that a node does not
know; one bad feature fails all.
Source: FeatureControlManager.java `updateFeature`, QuorumFeatures.java `reasonNotSupported`, QuorumController.java.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.cluster_levels import LOWERED
from region_broker.controller.feature_levels import FEATURE
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.refusals import CommandRefused
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.api_versions import FEATURES
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.wire.cooperative_yield import CooperativeYield

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_ALL_FAILED: Final = "The update failed for all features since the following feature had an error: "


async def handle_update_features(ctx: RequestContext, request: Any) -> Fields:
    """Raise the region's level where that is asked for; or say why the first feature that would change cannot."""
    check_count("UpdateFeatures", len(request.feature_updates))
    yielding = CooperativeYield()
    for update in request.feature_updates:
        await yielding.row()
        refused = _refusal(ctx, update)
        if refused is None and update.feature == FEATURE:
            refused = await _raise(ctx, int(update.max_version_level), dry_run=True)
        if refused is not None:
            return _failed(*refused)
    for update in request.feature_updates:
        if update.feature == FEATURE and not getattr(request, "validate_only", False):
            refused = await _raise(ctx, int(update.max_version_level), dry_run=False)
            if refused is not None:
                return _failed(*refused)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None}
            for update in request.feature_updates
        ],
    }


def _failed(error: ErrorCode, text: str) -> Fields:
    return {"error_code": error, "error_message": _ALL_FAILED + text, "results": []}


async def _raise(ctx: RequestContext, level: int, *, dry_run: bool) -> tuple[ErrorCode, str] | None:
    try:
        await ctx.services.features.raise_to(level, dry_run=dry_run)
    except CommandRefused as refused:
        if refused.code == LOWERED:
            return ErrorCode.feature_update_failed, refused.reason
        return ErrorCode.invalid_update_version, refused.reason
    except MetadataUnwritable as failed:
        return unwritten(failed)
    return None


def _refusal(ctx: RequestContext, update: Any) -> tuple[ErrorCode, str] | None:
    name, level, kind = str(update.feature), int(update.max_version_level), _kind(update)
    features = ctx.services.features
    known = {**{each: range(top + 1) for each, top in FEATURES}, FEATURE: features.supported}
    present = {**dict(FEATURES), FEATURE: features.finalized}.get(name)
    why = _invalid(ctx.services.region.node_id, known.get(name), present, level, kind)
    if why is not None:
        text = f"Invalid update version {level} for feature {name:.100}. {why}"
        return ErrorCode.invalid_update_version, text
    if level == present or name == FEATURE:
        return None
    return (
        ErrorCode.feature_update_failed,
        f"{name} is at level {present}, at which this version of Tidemark always works: it cannot be lowered",
    )


def _kind(update: Any) -> int:
    """Return the kind of upgrade; version 0 has two of them, in a word of its own."""
    allowed = getattr(update, "allow_downgrade", None)
    if allowed is None:
        return int(update.upgrade_type)
    return _SAFE_DOWNGRADE if allowed else _UPGRADE


def _invalid(
    node_id: int, known: range | None, present: int | None, level: int, kind: int
) -> str | None:
    """Return why Kafka would not take this level either."""
    if kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if known is None or present is None:
        return f"Local controller {node_id} does not support this feature."
    if level > known[-1]:
        return f"Local controller {node_id} only supports versions {known[0]}-{known[-1]}"
    if level < present and kind == _UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    return None


API: Final = Api(57, "UpdateFeatures", range(3), handle_update_features)
