"""Order of connections per transactional id: the TV1 defence against requests that were overtaken.

INV-TO1  once a transaction request arrived on connection n, none of an older connection is executed for that
         transactional id, until InitProducerId starts over (exactly-once, section 3)
INV-TO2  InitProducerId is exempt: it has its own epoch rules, and some clients send it elsewhere

Under TV1 one epoch serves many transactions, so a late EndTxn of an abandoned connection could end the next
transaction (KAFKA-17754). Off by default: a client that goes back to an older connection would be refused.
Not here: numbering connections (region_broker.wire).
"""


class ConnectionOrder:
    """Newest connection number seen per transactional id; numbers grow with each accepted one."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        """Know nobody."""
        self._newest: dict[str, int] = {}

    def admit(self, transactional_id: str, connection_id: int) -> bool:
        """Return whether a request of this connection may run; remembers the connection if so."""
        newest = self._newest.get(transactional_id)
        if newest is not None and connection_id < newest:
            return False
        self._newest[transactional_id] = connection_id
        return True

    def start_over(self, transactional_id: str) -> None:
        """Forget the id: its producer was initialised, the epoch fences what came before."""
        self._newest.pop(transactional_id, None)
