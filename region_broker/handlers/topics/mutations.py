"""The quota of changes of the metadata, controller_mutation_rate: partitions that are made, added or deleted (KIP-599).

From the version on that knows THROTTLING_QUOTA_EXCEEDED a change is refused while something is owed; before it all are made, and the
client is told to wait. What is only checked costs nothing.
Source: ControllerMutationQuotaManager.scala, StrictControllerMutationQuota.java, PermissiveControllerMutationQuota.java.
Not here: how much is left (`security.quotas`).
"""

from typing import Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.services import RequestContext

THROTTLED: Final = (
    ErrorCode.throttling_quota_exceeded,
    "The throttling quota has been exceeded.",
)


def may_change(ctx: RequestContext, partition_count: int, strict_since: int) -> bool:
    """Charge so many partitions; return whether the change may be made."""
    meter = ctx.meter
    return meter is None or meter.mutate(partition_count, strict=ctx.version >= strict_since)
