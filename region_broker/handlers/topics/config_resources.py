"""What AlterConfigs and IncrementalAlterConfigs share: resources named once, topics and nodes changed, the rest refused.

What is validated is what is written: if another change came between, it is validated again. What is asked of nodes is this
node's own affair, whether or not its region acts; topics in the same request are refused where it does not.
Source: Kafka ConfigAdminManager (errors and their order). Not here: what the operations mean (`controller.config_changes`),
configs of nodes (`broker_configs`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from region_broker.controller.config_changes import (
    ChangeRefused,
    ConfigChange,
    ConfigOp,
    MalformedChange,
    check_shape,
)
from region_broker.controller.feature_levels import SEALS_SINCE_LEVEL
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_configs import MIN_IN_SYNC, config_problem, normal
from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.authorizing import ERROR_OF, may
from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.handlers.topics.broker_configs import change_broker
from region_broker.handlers.topics.config_orders import (
    NewConfigs,
    Refused,
    ResourceType,
    check_may_ask_again,
)
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.limits import ADMIN_ITEMS_MAX, CHANGE_ATTEMPTS
from region_broker.log.log_config import ENCRYPTION_KEY
from region_broker.security import access
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_JUDGED_AS: Final[Mapping[int, access.ResourceType]] = {
    ResourceType.TOPIC: access.ResourceType.TOPIC,
    ResourceType.GROUP: access.ResourceType.GROUP,
}
Plan: TypeAlias = Callable[[Sequence[ConfigChange]], NewConfigs]
"""Makes of what is asked for one resource how its configs change; the shape was checked."""


def kept_configs(services: Services, configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configs that a topic gets as they are kept (INV-CT4); raises `Refused` where it may not have them."""
    problem = config_problem(configs, services.metadata.image.domains or {"main"})
    kept = {} if problem else normal({key: str(value) for key, value in configs.items()})
    if problem is None:
        problem = _problem_of_in_sync(len(services.nodes.replicas), kept)
    if problem is None:
        problem = _problem_of_seal(services.metadata.image.feature_level, kept)
    if problem is None:
        problem = services.partitions.config_problem(kept)
    if problem is not None:
        raise Refused(ErrorCode.invalid_config, problem)
    return kept


def _problem_of_seal(level: int, configs: Mapping[str, str]) -> str | None:
    """Return why no topic can be sealed yet: older nodes may be there (INV-FL1)."""
    if not configs.get(ENCRYPTION_KEY) or level >= SEALS_SINCE_LEVEL:
        return None
    return (
        f"{ENCRYPTION_KEY} came with feature level {SEALS_SINCE_LEVEL}, and this region is at {level}: older nodes would write such a topic in the"
        " open. When all nodes of all regions run this version, raise it: tidemark cluster upgrade --finalize"
    )


def _problem_of_in_sync(node_count: int, configs: Mapping[str, str]) -> str | None:
    """Return why so many nodes cannot be in sync: a write with acks=all would never be taken."""
    asked = int(configs.get(MIN_IN_SYNC) or 1)
    if asked <= node_count:
        return None
    has = "has one node" if node_count == 1 else f"has {node_count} nodes"
    return f"{MIN_IN_SYNC}={asked}: the region {has}, so at most {node_count} can be in sync"


def asks_for_nodes(request: Any) -> bool:
    """Return whether a request to alter configs names a node: such a one is executed where it was sent to. So is one that names too much: it is refused."""
    resources = request.resources
    return len(resources) > ADMIN_ITEMS_MAX or any(
        int(each.resource_type) == ResourceType.BROKER for each in resources
    )


async def answer_resources(ctx: RequestContext, request: Any, plan: Plan) -> Fields:
    """Change each resource as `plan` says, and answer for each."""
    resources: Sequence[Any] = request.resources
    count = len(resources) + sum(len(resource.configs) for resource in resources)
    if count > ADMIN_ITEMS_MAX:
        text = f"the request names {count} resources and keys, at most {ADMIN_ITEMS_MAX}"
        refused_row = partial(row_of, error=ErrorCode.invalid_request, text=text)
        return {"responses": await each_yielding(resources, refused_row, CooperativeYield())}
    times = Counter(await each_yielding(resources, _identity, CooperativeYield.of_a_write()))
    rows = []
    yielding = CooperativeYield.of_a_write()
    for resource in resources:
        await yielding.row(1 + len(resource.configs))
        try:
            if times[_identity(resource)] > 1:
                text = "each resource must appear at most once"
                raise Refused(ErrorCode.invalid_request, text)  # noqa: TRY301
            await _change(ctx, resource, plan, dry=bool(request.validate_only))
            rows.append(row_of(resource, ErrorCode.none, None))
        except MalformedChange as malformed:
            rows.append(row_of(resource, ErrorCode.invalid_request, str(malformed)))
        except Refused as refused:
            rows.append(row_of(resource, refused.error, refused.text))
        except MetadataUnwritable as failed:  # what came before has changed
            rows.append(row_of(resource, *unwritten(failed)))
    return {"responses": rows}


def _identity(resource: Any) -> tuple[int, str]:
    return int(resource.resource_type), str(resource.resource_name)


def row_of(resource: Any, error: int, text: str | None) -> Fields:
    """Return the answer for one resource."""
    kind, name = _identity(resource)
    return {
        "error_code": error,
        "error_message": text,
        "resource_type": kind,
        "resource_name": name,
    }


async def _change(ctx: RequestContext, resource: Any, plan: Plan, *, dry: bool) -> None:
    check_may(ctx, Operation.ALTER_CONFIGS, *_identity(resource))
    changes = [
        ConfigChange(item.name, int(getattr(item, "config_operation", ConfigOp.SET)), item.value)
        for item in resource.configs
    ]
    check_shape(changes)
    kind, name = _identity(resource)
    match kind:
        case ResourceType.TOPIC:
            if not ctx.services.region.acting:
                raise Refused(
                    ErrorCode.invalid_request,
                    "this region does not act: ask for topics without nodes, then that is forwarded",
                )
            await _change_topic(ctx, name, plan(changes), dry=dry)
        case ResourceType.BROKER:
            await change_broker(ctx.services, name, changes, plan, dry=dry)
        case _:
            raise Refused(
                ErrorCode.invalid_request,
                f"resource type {kind} has no configs here, only 2 (topic) and 4 (broker) have ones that can change",
            )


def check_may(ctx: RequestContext, operation: Operation, kind: int, name: str) -> None:
    """Raise `Refused` for who may not do that with configs: a topic's and a group's belong to it, all others to the cluster."""
    resource_type = _JUDGED_AS.get(kind, access.ResourceType.CLUSTER)
    if resource_type is access.ResourceType.CLUSTER:
        name = access.CLUSTER_NAME
    if not may(ctx, operation, resource_type, name):
        raise Refused(ERROR_OF[resource_type], None)


async def _change_topic(
    ctx: RequestContext, name: str, new_configs: NewConfigs, *, dry: bool
) -> None:
    services = ctx.services

    def still_may() -> bool:
        return may(ctx, Operation.ALTER_CONFIGS, access.ResourceType.TOPIC, name)

    for _ in range(CHANGE_ATTEMPTS):
        topic = _topic(services, name)
        try:
            asked = new_configs(normal(topic.configs))
        except ChangeRefused as refused:
            raise Refused(ErrorCode.invalid_config, str(refused)) from refused
        configs = kept_configs(services, asked)
        if dry or configs == topic.configs:
            return
        try:
            await services.metadata.change_configs(name, configs, topic.configs, still_may)
        except CommandRefused as refused:
            check_may_ask_again(refused)
            continue  # another change or a deletion came between: look again
        return
    raise Refused(
        ErrorCode.request_timed_out, f"topic {name} is being changed by others: try again"
    )


def _topic(services: Services, name: str) -> TopicImage:
    if not name:
        raise Refused(ErrorCode.invalid_request, "topics have no common configs: name one")
    problem = name_problem(name)
    if problem is not None:
        raise Refused(ErrorCode.invalid_topic_exception, problem)
    topic = services.metadata.image.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
    if topic.internal:
        raise Refused(
            ErrorCode.policy_violation,
            f"topic {name} is a ledger of Tidemark: its configs are fixed",
        )
    return topic


def on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    """Return one error for every resource."""
    return {"responses": [row_of(resource, error_code, None) for resource in request.resources]}
