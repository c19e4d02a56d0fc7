"""What a request is charged for, and where its answer says for how long the client is to be quiet.

INV-HTH2  nobody is charged for who has not logged in where that is needed: who floods a node with logins would else have everybody wait who is
          about to log in, as all of those are one user
INV-HTH1  a request that another node carried out tells the longer of the two times: that node's, and this one's
Not here: how much of a quota is left (`security.quotas`), leaving the socket unread (`wire.server`).
"""

from typing import Final

from region_broker.handlers.dispatch.registry import Api
from region_broker.security.quotas.throttles import Throttles
from region_broker.wire.codec.entities import request_schema
from region_broker.wire.codec.fast_paths.produce import VERSIONS as PRODUCE_VERSIONS
from region_broker.wire.codec.gathered import AnswerBytes
from region_broker.wire.codec.throttle_times import throttle_told_ms, with_throttle
from region_broker.wire.connection import Incoming
from region_broker.wire.headers import HeaderError, read_header

_PRODUCE_KEY: Final = 0
_FETCH_KEY: Final = 1


def arrived(quotas: Throttles, now_s: float, incoming: Incoming) -> None:
    """Charge a Produce as it comes: whatever serves it, what its connection brings behind it waits. All else is charged as it is served."""
    if incoming.api_key != _PRODUCE_KEY or incoming.version not in PRODUCE_VERSIONS:
        return
    flexible = request_schema(_PRODUCE_KEY, incoming.version).flexible
    try:
        header = read_header(incoming.frame, flexible=flexible)
    except HeaderError:
        return  # the dispatcher says so, and closes the connection
    metered(quotas, incoming, header.client_id, now_s)


def metered(quotas: Throttles, incoming: Incoming, client_id: str | None, now_s: float) -> None:
    """Let a request be charged from now on, a Produce for its bytes at once."""
    peer = incoming.peer
    if peer.state.must_log_in:  # INV-HTH2
        return
    _, _, user = peer.state.identity.principal.partition(":")
    meter = quotas.meter(user, client_id, is_forwarded=peer.numbering.origin != 0)
    incoming.meter = meter
    meter.start(now_s)
    if incoming.api_key == _PRODUCE_KEY:
        incoming.throttle_ms = meter.produced(len(incoming.frame))


def settled(
    api: Api, incoming: Incoming, answer: AnswerBytes | None, now_s: float
) -> AnswerBytes | None:
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
