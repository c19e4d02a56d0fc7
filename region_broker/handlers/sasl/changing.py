"""A change of users or tokens as handlers ask for it: refusals and failures as Kafka's numbers.

Not here: what is changed (each API's file), where it is kept (`controller.access_commands`).
"""

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.handlers.dispatch.services import MetadataService
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.security.access import AccessChange


async def changed(metadata: MetadataService, change: AccessChange) -> tuple[ErrorCode, str | None]:
    """Change access; return NONE, or Kafka's error and a text."""
    try:
        await metadata.change_access(change)
    except CommandRefused as refused:
        if refused.code == NOT_ACTING:
            return ErrorCode.not_controller, refused.reason
        return ErrorCode.policy_violation, refused.reason
    except MetadataUnwritable as failed:
        return unwritten(failed)
    return ErrorCode.none, None
