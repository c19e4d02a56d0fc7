"""ApiVersions (18), versions 0-4.  v3: client software, finalized features (KIP-482, KIP-584).

FinalizedFeatures holds transaction.version = 2 and FinalizedFeaturesEpoch >= 0: otherwise Java and franz-go clients
stay on TV1 (C21).
The answer to an unsupported version is version 0 with UNSUPPORTED_VERSION and the table (KIP-511): see
`dispatch`. Header v0 always: `wire.codec.answers`.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import RegionEpoch
from region_broker.controller.feature_levels import FEATURE, finalized_epoch
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.codec.answers import encode_body

KEY: Final = 18
TRANSACTION_VERSION: Final = 2
_KEPT: Final = 16  # all versions, before and behind a change of epoch or level
GROUP_VERSION: Final = 1  # the new group protocol (KIP-848), as in Kafka 4.x
FEATURES: Final = (("transaction.version", TRANSACTION_VERSION), ("group.version", GROUP_VERSION))
"""The features that clients know of, each at the only level that this version works at; the region's own is beside them
(`feature_levels.FEATURE`), and is the only one that can be raised."""


def api_rows(apis: Iterable[Api]) -> list[dict[str, int]]:
    """Return the table of APIs and versions as the answer holds it."""
    return [
        {
            "api_key": api.key,
            "min_version": api.versions.start,
            "max_version": api.versions.stop - 1,
        }
        for api in apis
    ]


def answer_fields(
    rows: list[dict[str, int]], error_code: int, *, epoch: int = 0, own: tuple[range, int] | None = None
) -> Fields:  # fmt: skip
    """Return the answer; `epoch` is the region's, never below 0. `own`: which levels of the region's feature are known, and the finalized one."""
    served = [(name, range(level + 1), level) for name, level in FEATURES if level > 0]
    if own is not None:
        served.append((FEATURE, *own))
        epoch = finalized_epoch(RegionEpoch(epoch), own[1])
    return {
        "error_code": error_code,
        "api_keys": rows,
        "supported_features": [
            {"name": name, "min_version": known[0], "max_version": known[-1]}
            for name, known, _ in served
        ],
        "finalized_features_epoch": max(0, epoch),
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, _, level in served
        ],
    }


def api_versions_api(others: Iterable[Api]) -> Api:
    """Return the API that lists `others` and itself. Every connection begins with it, so what was answered is kept in bytes."""

    @lru_cache(maxsize=_KEPT)
    def body(version: int, epoch: int, own: tuple[range, int]) -> bytes:
        return encode_body(KEY, version, answer_fields(rows, ErrorCode.none, epoch=epoch, own=own))

    async def handle(ctx: RequestContext, request: Any) -> Fields | bytes:
        if ctx.version >= 3 and not (
            request.client_software_name and request.client_software_version
        ):
            return answer_fields([], ErrorCode.invalid_request)
        region, features = ctx.services.region, ctx.services.features
        return body(ctx.version, region.region_epoch, (features.supported, features.finalized))

    api = Api(KEY, "ApiVersions", range(5), handle)
    rows = api_rows(sorted((*others, api), key=lambda each: each.key))
    return api
