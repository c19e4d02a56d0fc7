"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339): set, delete, append and subtract single configs."""

from collections.abc import Sequence
from typing import Any, Final

from region_broker.controller.config_changes import ConfigChange, changed
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import NewConfigs
from region_broker.handlers.topics.config_resources import (
    answer_resources,
    asks_for_nodes,
    on_error,
)


async def handle_incremental_alter_configs(ctx: RequestContext, request: Any) -> Fields:
    """Change the configs named of each resource, or say why not."""
    return await answer_resources(ctx, request, _plan)


def _plan(changes: Sequence[ConfigChange]) -> NewConfigs:
    return lambda configs: changed(configs, changes)


API: Final = Api(
    44,
    "IncrementalAlterConfigs",
    range(2),
    handle_incremental_alter_configs,
    forward=True,
    is_own=asks_for_nodes,
    on_error=on_error,
)
