"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339): set, delete, append and subtract single configs."""

from typing import Any, Final

from region_broker.controller.config_changes import ConfigChange, changed, check_shape
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_resources import (
    NewConfigs,
    answer_resources,
    error_for_all,
)


async def handle_incremental_alter_configs(ctx: RequestContext, request: Any) -> Fields:
    """Change the configs named of each topic, or say why not."""
    return await answer_resources(ctx, request, _plan)


def _plan(resource: Any) -> NewConfigs:
    changes = [
        ConfigChange(item.name, int(item.config_operation), item.value) for item in resource.configs
    ]
    check_shape(changes)
    return lambda configs: changed(configs, changes)


API: Final = Api(
    44,
    "IncrementalAlterConfigs",
    range(2),
    handle_incremental_alter_configs,
    forward=True,
    on_error=error_for_all,
)
