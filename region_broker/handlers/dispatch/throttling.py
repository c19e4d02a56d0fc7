"""What a request is charged for, and where its answer says for how long the client is to be quiet.

INV-HTH1  a request that another node carried out tells the longer of the two times: that node's, and this one's
Not here: how much of a quota is left (`security.quotas`), leaving the socket unread (`wire.server`).
"""

from typing import Final

from region_broker.handlers.dispatch.registry import Api
from region_broker.ports.network import Buffer
from region_broker.security.quotas.throttles import Throttles
from region_broker.wire.codec.throttle_times import throttle_told_ms, with_throttle
from region_broker.wire.connection import Incoming

_PRODUCE_KEY: Final = 0
_FETCH_KEY: Final = 1


def metered(quotas: Throttles, incoming: Incoming, client_id: str | None, now_s: float) -> None:
    """Let a request be charged from now on; a Produce is charged for its bytes at once, so that what is behind it waits."""
    peer = incoming.peer
    _, _, user = peer.state.identity.principal.partition(":")
    meter = quotas.meter(user, client_id, is_forwarded=peer.numbering.origin != 0)
    incoming.meter = meter
    meter.start(now_s)
    if incoming.api_key == _PRODUCE_KEY:
        incoming.throttle_ms = meter.produced(len(incoming.frame))


def settled(api: Api, incoming: Incoming, answer: Buffer | None, now_s: float) -> Buffer | None:
    """Charge a request that is answered; return its answer, with the throttle time in it."""
    meter = incoming.meter
    if meter is None:
        return answer
    if api.key == _FETCH_KEY and answer is not None:
        meter.fetched(len(answer))
    throttle_ms = meter.settle(now_s)
    if answer is None or incoming.version not in api.versions:
        incoming.throttle_ms = throttle_ms
        return answer
    told_ms = throttle_told_ms(api.key, incoming.version, answer)
    throttle_ms = incoming.throttle_ms = max(throttle_ms, told_ms)
    if throttle_ms == told_ms:
        return answer
    return with_throttle(api.key, incoming.version, answer, throttle_ms)
