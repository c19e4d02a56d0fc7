"""AlterConfigs (33), versions 0-2: all configs of a topic at once; what is not named is set back to its default.

Kafka deprecated it for IncrementalAlterConfigs: whoever reads, changes and writes may undo another's change.
"""

from typing import Any, Final

from region_broker.controller.config_changes import ConfigChange, ConfigOp, check_shape, replaced
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_resources import (
    NewConfigs,
    answer_resources,
    error_for_all,
)


async def handle_alter_configs(ctx: RequestContext, request: Any) -> Fields:
    """Replace the configs of each topic, or say why not."""
    return await answer_resources(ctx, request, _plan)


def _plan(resource: Any) -> NewConfigs:
    changes = [ConfigChange(item.name, ConfigOp.SET, item.value) for item in resource.configs]
    check_shape(changes)
    values = {change.name: str(change.value) for change in changes}
    return lambda configs: replaced(configs, values)


API: Final = Api(
    33, "AlterConfigs", range(3), handle_alter_configs, forward=True, on_error=error_for_all
)
