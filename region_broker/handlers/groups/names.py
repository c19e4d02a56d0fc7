"""Names in group requests: who the client is as groups remember it, and topics by name or id.

Not here: errors (`groups.errors`), what is done with names (each API's file).
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from idempotency.identity import TopicName
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import GROUP_NAME_BYTES_MAX


def client_id(ctx: RequestContext) -> str:
    """Return what the client calls itself."""
    return _shortened(ctx.client_id or "anonymous")


def client_host(ctx: RequestContext) -> str:
    """Return the client's address as Kafka writes it."""
    return "/" + _shortened(ctx.peer.rpartition(":")[0] or ctx.peer)


def _shortened(name: str) -> str:
    return name.encode()[: GROUP_NAME_BYTES_MAX - 1].decode(errors="ignore")


def topic_names(ctx: RequestContext) -> Mapping[UUID, str]:
    """Return the names of all topics by id."""
    return {topic.topic_id: name for name, topic in ctx.services.metadata.image.topics.items()}


def topic_name(topic: Any, names: Mapping[UUID, str]) -> TopicName | None:
    """Return the name of a topic in a request that says its name or (v10+) its id; None: unknown id."""
    if hasattr(topic, "name"):
        return TopicName(topic.name)
    name = names.get(topic.topic_id)
    return None if name is None else TopicName(name)
