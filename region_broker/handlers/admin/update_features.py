"""UpdateFeatures (57), versions 0-2: features are at the level that this version works at, and stay there (KIP-584).

v0: downgrades are allowed or not.  v1: kinds of upgrade, validate only (KIP-778).  v2: no rows for each feature.
A level that is in force is no change. Another one that Kafka would take cannot be taken here, because nothing works in two ways:
FEATURE_UPDATE_FAILED. All that Kafka refuses is INVALID_UPDATE_VERSION, in its words; one bad feature fails all.
Source: FeatureControlManager.java `updateFeature`, QuorumFeatures.java `reasonNotSupported`, QuorumController.java.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.api_versions import FEATURES
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_ALL_FAILED: Final = "The update failed for all features since the following feature had an error: "


async def handle_update_features(ctx: RequestContext, request: Any) -> Fields:
    """Say of all features that nothing needs to change, or why the first that would cannot."""
    check_count("UpdateFeatures", len(request.feature_updates))
    yielding = CooperativeYield()
    for update in request.feature_updates:
        await yielding.row()
        refused = _refusal(ctx, update)
        if refused is not None:
            error, text = refused
            return {"error_code": error, "error_message": _ALL_FAILED + text, "results": []}
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None}
            for update in request.feature_updates
        ],
    }


def _refusal(ctx: RequestContext, update: Any) -> tuple[ErrorCode, str] | None:
    name, level, kind = str(update.feature), int(update.max_version_level), _kind(update)
    present = dict(FEATURES).get(name)
    why = _invalid(ctx.services.region.node_id, present, level, kind)
    if why is not None:
        text = f"Invalid update version {level} for feature {name:.100}. {why}"
        return ErrorCode.invalid_update_version, text
    if level == present:
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


def _invalid(node_id: int, present: int | None, level: int, kind: int) -> str | None:
    """Return why Kafka would not take this level either."""
    if kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if present is None:
        return f"Local controller {node_id} does not support this feature."
    if level > present:
        return f"Local controller {node_id} only supports versions 0-{present}"
    if level < present and kind == _UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    return None


API: Final = Api(57, "UpdateFeatures", range(3), handle_update_features)
