"""Order of connections per transactional id: the TV1 defence against requests that arrive too late.

Under TV1 one producer epoch serves many transactions, so a request that was held up on an abandoned connection
could take effect in a later transaction (KAFKA-17754). TCP keeps order within a connection, so what is late
came over another one than what the producer uses now:

1. Txn 1 ends: EndTxn goes out on connection 7, and stays on the way. Connection 7 breaks for the client.
2. The client sends EndTxn again on connection 8, is answered, begins txn 2, and writes half of it.
3. The first EndTxn arrives, with the right producer id and epoch, and ends txn 2 in the middle.

INV-TO1  once a coordinator request of a pair (producer id, epoch) was executed on connection n, none of an
         older connection is executed for that pair
INV-TO2  only requests with the pair in force count: whoever was fenced cannot fence whoever fenced him
INV-TO3  connections are compared only with connections that came in the same way (`Sender.origin`): numbers of
         different regions say nothing about each other
INV-TO4  after an abort, data on a connection that existed before it is executed when it comes a second time:
         the first time it is refused with an error that clients retry at once. A late request is never
         repeated by anybody; a live client repeats. A connection that has repeated is believed. Where the abort came in another
         way than the data does, any connection there may have existed before it, when the first data comes
INV-TO5  what one transactional id makes this remember is bounded, in number and in bytes: of what has to come twice a hash is kept,
         since a client says how long the name of its group is
INV-TO6  of a pair that a region before gave out, what comes over a connection that existed when the first request of its
         origin came is executed when it comes a second time, as after an abort (INV-TO4): data and coordinator requests

Why INV-TO6. After a planned switch the pair goes on, and what the region before knew of its connections is gone:

1. A client of either region begins txn 1 on connection 7, which breaks. 2. It goes on over connection 8, ends txn 1, and
begins txn 2; the region is switched. 3. What was held up on connection 7 arrives before anything new on connection 8 does.

Of what has to come twice over a connection the first ones are remembered, and the latest: a client repeats them in the order in
which they were refused, and one repeat is enough. Were the oldest forgotten for the newest, a request of more partitions than are
remembered would never be found to be a repeat.

Not needed after a commit: the client had all answers before it, so anything late is a repeat, which the sequence
numbers show. Not here: numbering connections (`region_broker.wire`), TV2, whose epoch grows per transaction.
"""

from collections.abc import Hashable
from typing import Final, NamedTuple

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerPair

_ORIGINS_MAX: Final = 16
_CHALLENGED_CONNECTIONS_MAX: Final = 16
_CHALLENGED_MAX: Final = 4
"""Of one connection."""
_PROVEN_MAX: Final = 64


class Sender(NamedTuple):
    """The connection that a request came on."""

    origin: int
    """How connections came in that may be compared: one listener, in one life of its process."""
    number: int
    """Grows with every connection accepted there."""
    newest: int
    """The greatest number there when this request came."""


class Arrival(NamedTuple):
    """Data that came in: over which connection, and what a repeat of it has in common with it."""

    sender: Sender
    sequence: Hashable
    """Where it stands in the producer's order: a base sequence, a group."""


class ConnectionOrder:
    """What is known of the connections of one transactional id, for the pair in force."""

    __slots__ = ("_aborted", "_challenged", "_floors", "_inherited", "_pair", "_proven", "_suspect")

    def __init__(self) -> None:
        """Know nothing."""
        self._pair: ProducerPair = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self._inherited = False
        self._aborted = False
        self._floors: dict[int, int] = {}
        self._suspect: dict[int, int] = {}
        """By origin: connections up to this number existed when the last abort was asked for, or at an origin's first."""
        self._proven: set[tuple[int, int]] = set()
        self._challenged: dict[tuple[int, int], list[int]] = {}
        """By connection: hashes of what has to come twice."""

    def of(self, pair: ProducerPair, *, inherited: bool = False) -> "ConnectionOrder":
        """Return this order for the pair in force, started over if that is a new one.

        `inherited`: a region before gave it out, and its requests came there first (INV-TO6).
        """
        if pair != self._pair:
            self._pair = pair
            self._inherited = inherited
            self._floors.clear()
            self._forget_abort()
            assert not self._floors, f"INV-TO2: known before {pair} was in force"
            assert not self._suspect, f"INV-TO2: suspected before {pair} was in force"
        return self

    def is_late(self, sender: Sender) -> bool:
        """Return whether a newer connection of the same origin was served."""
        return sender.number < self._floors.get(sender.origin, 0)

    def admit(self, sender: Sender) -> bool:
        """Return whether a coordinator request of this connection may run; remembers the connection if so."""
        if self.is_late(sender):
            return False
        # The origin used last stays: it is the one that a late request would come by.
        self._floors.pop(sender.origin, None)
        self._floors[sender.origin] = sender.number
        if len(self._floors) > _ORIGINS_MAX:
            del self._floors[next(iter(self._floors))]
        assert self._floors[sender.origin] == sender.number, f"INV-TO1: {sender}, {self._floors}"
        assert len(self._floors) <= _ORIGINS_MAX, f"INV-TO5: {len(self._floors)}"
        return True

    def aborting(self, sender: Sender) -> None:
        """Note that an abort was asked for: data on its way up to now belongs to what is aborted."""
        assert sender.number <= sender.newest, f"INV-TO3: {sender}"
        self._forget_abort()
        self._aborted = True
        self._suspect[sender.origin] = sender.newest
        # What comes behind the abort on its own connection was sent behind it.
        self._proven.add((sender.origin, sender.number))

    def admit_data(self, tp: Hashable, arrival: Arrival) -> bool:
        """Return whether data for `tp` may be executed; False: refuse it so that a live client repeats it."""
        return self._believes(arrival.sender, (tp, arrival.sequence))

    def believes(self, sender: Sender, kind: Hashable) -> bool:
        """Return whether a coordinator request may be executed as far as INV-TO6 goes; False: as of `admit_data`.

        `kind`: what its repeat has in common with it. A client has one request of a kind under way at a time, and may
        repeat it with more partitions.
        """
        return not self._inherited or self._believes(sender, kind)

    def _believes(self, sender: Sender, what: Hashable) -> bool:
        if (self._inherited or self._aborted) and sender.origin not in self._suspect:
            self._suspect[sender.origin] = sender.newest
            if len(self._suspect) > _ORIGINS_MAX:
                del self._suspect[next(iter(self._suspect))]
        assert len(self._suspect) <= _ORIGINS_MAX, f"INV-TO5: {len(self._suspect)}"
        if sender.number > self._suspect.get(sender.origin, -1):
            return True
        connection = (sender.origin, sender.number)
        return connection in self._proven or self._is_repeat(connection, what)

    def _is_repeat(self, connection: tuple[int, int], what: Hashable) -> bool:
        known, key = self._challenged.setdefault(connection, []), hash(what)
        if key not in known:
            self._challenge(known, key)
            return False
        del self._challenged[connection]
        if len(self._proven) >= _PROVEN_MAX:
            self._proven.clear()
        self._proven.add(connection)
        assert len(self._proven) <= _PROVEN_MAX, f"INV-TO5: {len(self._proven)}"
        return True

    def _challenge(self, known: list[int], key: int) -> None:
        if len(known) < _CHALLENGED_MAX:
            known.append(key)
        else:
            known[-1] = key
        if len(self._challenged) > _CHALLENGED_CONNECTIONS_MAX:
            del self._challenged[next(iter(self._challenged))]
        assert len(known) <= _CHALLENGED_MAX, f"INV-TO5: {len(known)}"
        assert len(self._challenged) <= _CHALLENGED_CONNECTIONS_MAX, (
            f"INV-TO5: {len(self._challenged)}"
        )

    def _forget_abort(self) -> None:
        self._aborted = False
        self._suspect.clear()
        self._proven.clear()
        self._challenged.clear()
