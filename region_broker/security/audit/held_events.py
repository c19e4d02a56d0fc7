"""What a node hears at its doors before its trail is open: while it waits for the quorum of its region, it checks passwords and refuses already.

INV-ARH1  who was refused meanwhile is told to the trail once that is open, with when it was first and how often: of KINDS_MAX different ones, of
          which one network has half; the rest is told as one of its kind, with its count
It is lost where the process ends before that, as what is told within the last second before a crash is.
Not here: the trail (`recorder`), what is told (`node.audit_hooks`).
"""

from collections import Counter
from typing import Final

import msgspec

from idempotency.ports import Clock
from region_broker.ports.addresses import network_of
from region_broker.security.audit.events import AuditEvent
from region_broker.security.audit.recorder import FLOOD_KINDS_MAX
from region_broker.security.audit.trail import AuditTrail

KINDS_MAX: Final = FLOOD_KINDS_MAX // 2
"""Told in one moment, they leave places for what is beyond them, and for who comes then."""
OF_ONE_MAX: Final = KINDS_MAX // 2
MORE: Final = "too many to be told apart while the node waited"


class HeldEvents(AuditTrail):
    """A trail for that long, of refusals and logins."""

    is_on = True

    def __init__(self, clock: Clock) -> None:
        """Hold nothing yet."""
        self._clock = clock
        self._held: dict[tuple[object, ...], AuditEvent] = {}
        self._by: Counter[str] = Counter()

    def record(self, event: AuditEvent) -> None:
        """See `AuditTrail`."""
        of_it = (event.actor, event.resource, event.reason)
        key: tuple[object, ...] = (event.kind, event.operation, event.outcome, *of_it)
        if key not in self._held and not self._has_room(event):
            event = AuditEvent(
                kind=event.kind, operation=MORE, outcome=event.outcome, count=event.count
            )
            key = (event.kind, event.operation, event.outcome)
        found = self._held.get(key)
        if found is None:
            first = {"first_at_ms": self._clock.wall_ms()}
            self._held[key] = msgspec.structs.replace(event, details=first)
        else:
            self._held[key] = msgspec.structs.replace(found, count=found.count + event.count)

    def _has_room(self, event: AuditEvent) -> bool:
        network = network_of(event.actor.host)
        if self._by.total() >= KINDS_MAX or self._by[network] >= OF_ONE_MAX:
            return False
        self._by[network] += 1
        return True

    def tell(self, trail: AuditTrail) -> None:
        """Hand all over to the trail that is open by now, and hold nothing (INV-ARH1)."""
        held, self._held = self._held, {}
        self._by.clear()
        for event in held.values():
            trail.record(event)
