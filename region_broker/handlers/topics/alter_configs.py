"""AlterConfigs (33), versions 0-2: all configs of a topic or a node at once; what is not named is set back to its default.

Kafka deprecated it for IncrementalAlterConfigs: whoever reads, changes and writes may undo another's change.
"""

from collections.abc import Sequence
from typing import Any, Final

from region_broker.controller.config_changes import ConfigChange, replaced
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import NewConfigs
from region_broker.handlers.topics.config_resources import (
    answer_resources,
    asks_for_nodes,
    on_error,
)


async def handle_alter_configs(ctx: RequestContext, request: Any) -> Fields:
    """Replace the configs of each resource, or say why not."""
    return await answer_resources(ctx, request, _plan)


def _plan(changes: Sequence[ConfigChange]) -> NewConfigs:
    values = {change.name: str(change.value) for change in changes}
    return lambda configs: replaced(configs, values)


API: Final = Api(
    33,
    "AlterConfigs",
    range(3),
    handle_alter_configs,
    forward=True,
    is_own=asks_for_nodes,
    on_error=on_error,
)
