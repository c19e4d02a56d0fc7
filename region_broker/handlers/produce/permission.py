"""Who may write what a Produce brings: judged by what its batches say, before any of them is looked at further.

INV-HPP1 a request with a transactional batch is refused as a whole unless who asks may use its transactional id; one that has such a batch and
         names none, too. What the batches say counts, not what the request says of them (CVE-2018-17196)
INV-HPP2 a batch with a producer id needs no more than its topic: whoever may write there may have such an id (INV-AUZ5, KIP-679)
Source: KafkaApis.scala `handleProduceRequest`. Not here: whether the producer is in that transaction (`batches`).
"""

from typing import Final

from kio.schema.errors import ErrorCode

from idempotency.record_batch import HEADER_BYTES
from region_broker.handlers.dispatch.authorizing import (
    ERROR_OF,
    TOPIC_DENIED,
    may,
    may_topic,
    topic_name,
)
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import YIELD_ROWS
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.codec.fast_paths.produce import ProduceRequest, TopicKey

ATTRIBUTES_AT: Final = 22  # the lower of two bytes: all that is defined
_TRANSACTIONAL: Final = 0x10
_WRITE: Final = Operation.WRITE
_TOPIC, _TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


class Denied:
    """What of a request is refused: all of it, or what is for some topics, which are judged as their batches come up (INV-HAZ7)."""

    __slots__ = ("_ctx", "_everything", "_topics")

    def __init__(self, ctx: RequestContext | None = None, *, everything: bool = False) -> None:
        """Judge for `ctx`; None: nothing is refused."""
        self._ctx = ctx
        self._everything = everything
        self._topics: dict[TopicKey, bool] = {}

    def error(self, topic: TopicKey) -> ErrorCode | None:
        """Return why a batch for `topic` is refused, None if it is not; that is told once."""
        if self._everything:
            return ERROR_OF[ResourceType.TRANSACTIONAL_ID]
        if self._ctx is None:
            return None
        allowed = self._topics.get(topic)
        if allowed is None:
            allowed = self._topics[topic] = may_topic(self._ctx, Operation.WRITE, topic)
        return None if allowed else TOPIC_DENIED


NOTHING: Final = Denied()


def denied_of(ctx: RequestContext, request: ProduceRequest) -> Denied:
    """Return what of a request is refused; whoever asks it tells of that."""
    if not ctx.services.authorizer.in_force:
        return NOTHING
    name = request.transactional_id
    if _has_transactional(request) and not (
        name is not None and may(ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    ):
        return Denied(ctx, everything=True)
    return Denied(ctx)


def is_allowed_whole(ctx: RequestContext, request: ProduceRequest) -> bool:
    """Return whether surely nothing of a request is refused; nobody is told. False of one with many topics, which are judged one by one (INV-HAZ7)."""
    authorizer = ctx.services.authorizer
    if not authorizer.in_force:
        return True
    if len(request.topics) > YIELD_ROWS:
        return False
    identity = ctx.identity
    if _has_transactional(request):
        name = request.transactional_id
        if name is None or not authorizer.allows(identity, _WRITE, _TRANSACTIONAL_ID, name):
            return False
    for topic in request.topics:
        name = topic.key if isinstance(topic.key, str) else topic_name(ctx.services, topic.key)
        if name is None or not authorizer.allows(identity, _WRITE, _TOPIC, name):
            return False
    return True


def _has_transactional(request: ProduceRequest) -> bool:
    for topic in request.topics:
        for _, data in topic.batches:
            if data is None or len(data) < HEADER_BYTES:
                continue
            if data[ATTRIBUTES_AT] & _TRANSACTIONAL:
                return True
    return False
