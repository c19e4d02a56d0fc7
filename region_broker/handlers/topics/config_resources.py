"""What AlterConfigs and IncrementalAlterConfigs share: resources named once, topics changed, the rest refused.

What is validated is what is written: if another change came between, it is validated again. Configs of a broker are
refused with the reason: they stand in the node's file, and nothing in it can change while the node runs.
Source: Kafka ConfigAdminManager (errors and their order). Not here: what the operations mean (`controller.config_changes`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from region_broker.controller.config_changes import ChangeRefused, MalformedChange
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_configs import config_problem
from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.limits import ADMIN_ITEMS_MAX

_ATTEMPTS: Final = 8
NewConfigs: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]
"""Gives the new configs of a topic from those that it has; raises `ChangeRefused`."""


class ResourceType(IntEnum):
    """The types of resources that have configs in Kafka."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Refused(Exception):
    """A resource that stays as it is: Kafka's error and the text."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.error = error
        self.text = text


def configs_refusal(services: Services, configs: Mapping[str, str | None]) -> str | None:
    """Return why a topic may not have these configs, None if it may."""
    problem = config_problem(configs, services.metadata.image.domains or {"main"})
    if problem is not None:
        return problem
    return services.partitions.config_problem({k: str(v) for k, v in configs.items()})


async def answer_resources(
    ctx: RequestContext, request: Any, plan: Callable[[Any], NewConfigs]
) -> Fields:
    """Change each resource as `plan` says (raises `MalformedChange`), and answer for each."""
    resources: Sequence[Any] = request.resources
    times = Counter(_identity(resource) for resource in resources)
    count = len(resources) + sum(len(resource.configs) for resource in resources)
    rows = []
    for resource in resources:
        try:
            if count > ADMIN_ITEMS_MAX:
                text = f"the request names {count} resources and keys, at most {ADMIN_ITEMS_MAX}"
                raise Refused(ErrorCode.invalid_request, text)  # noqa: TRY301 -- one place answers
            if times[_identity(resource)] > 1:
                text = "each resource must appear at most once"
                raise Refused(ErrorCode.invalid_request, text)  # noqa: TRY301
            await _change(ctx, resource, plan, dry=bool(request.validate_only))
            rows.append(row_of(resource, ErrorCode.none, None))
        except MalformedChange as malformed:
            rows.append(row_of(resource, ErrorCode.invalid_request, str(malformed)))
        except Refused as refused:
            rows.append(row_of(resource, refused.error, refused.text))
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


async def _change(
    ctx: RequestContext, resource: Any, plan: Callable[[Any], NewConfigs], *, dry: bool
) -> None:
    new_configs = plan(resource)
    kind, name = _identity(resource)
    match kind:
        case ResourceType.TOPIC:
            await _change_topic(ctx.services, name, new_configs, dry=dry)
        case ResourceType.BROKER:
            raise Refused(
                ErrorCode.invalid_request,
                "a node's configs stand in its configuration file: change them there and restart it",
            )
        case _:
            raise Refused(
                ErrorCode.invalid_request,
                f"resource type {kind} has no configs here, only 2 (topic) has ones that can change",
            )


async def _change_topic(
    services: Services, name: str, new_configs: NewConfigs, *, dry: bool
) -> None:
    for _ in range(_ATTEMPTS):
        topic = _topic(services, name)
        try:
            configs = new_configs(topic.configs)
        except ChangeRefused as refused:
            raise Refused(ErrorCode.invalid_config, str(refused)) from refused
        problem = configs_refusal(services, configs)
        if problem is not None:
            raise Refused(ErrorCode.invalid_config, problem)
        if dry or configs == topic.configs:
            return
        try:
            await services.metadata.change_configs(name, configs, topic.configs)
        except CommandRefused as refused:
            if refused.code == NOT_ACTING:
                raise Refused(ErrorCode.not_controller, refused.reason) from refused
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


def error_for_all(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    """Return one error for every resource."""
    return {"responses": [row_of(resource, error_code, None) for resource in request.resources]}
