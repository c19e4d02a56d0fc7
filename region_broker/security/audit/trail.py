"""The port of the audit trail: what the rest of a node tells it, and what it waits for.

INV-ATR1  what an `intent` was asked for is done only behind it: it returns once the intent is durable, and raises `AuditUnwritable`
          where it is not; so what cannot be recorded is not done
INV-ATR2  what has happened already, or is refused, waits for nothing: `record` never blocks and never raises, and what it cannot keep is
          counted, and the count recorded
Equal refusals and logins of one second are one record with a count.
Not here: the trail of a node (`recorder`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from region_broker.security.audit.events import (
    Actor,
    AuditEvent,
    Kind,
    Outcome,
)
from region_broker.security.identity import Identity

__all__ = ["NO_AUDIT", "Actor", "AuditTrail", "AuditUnwritable", "Recorded", "told_unless_said"]


class AuditUnwritable(OSError):
    """It cannot be recorded now, so it is not done; the text says why, and what to do."""


class Recorded:
    """What was intended, and is told how it ended; use `AuditTrail.recording`."""

    __slots__ = ("_event", "_seq", "_trail", "is_told")

    def __init__(self, trail: "AuditTrail", event: AuditEvent, seq: int) -> None:
        """Answer the intent with that sequence number; 0 where there was none."""
        self._trail = trail
        self._event = event
        self._seq = seq
        self.is_told = False

    def ended(self, outcome: Outcome, reason: str = "") -> None:
        """Say what came of it, once."""
        if not self.is_told:
            self.is_told = True
            self._trail.record(
                msgspec.structs.replace(
                    self._event, outcome=outcome, reason=reason, answers=self._seq
                )
            )


class AuditTrail:
    """Keeps nothing; a trail that does overrides what is said of each method."""

    is_on: bool = False

    def record(self, event: AuditEvent) -> None:
        """Keep an event, behind (INV-ATR2). To be overridden."""

    async def intent(self, event: AuditEvent) -> int:
        """Return the sequence number of the intent once it is durable; raises `AuditUnwritable` (INV-ATR1). To be overridden."""
        assert event.outcome is Outcome.INTENDED
        return 0

    async def intended(self, event: AuditEvent) -> Recorded:
        """As `intent`, and return what is to be told the outcome."""
        return Recorded(self, event, await self.intent(event))

    def has_room_for_details(self, principal: str) -> bool:
        """Return whether what a principal asks for is told at length in this second, where it can be asked for again and again. To be overridden."""
        return True

    def problem(self) -> str | None:
        """Say why changes are refused, None where they are not. To be overridden."""
        return None

    async def run(self) -> None:
        """Write what comes until cancelled. To be overridden."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Write what is left. To be overridden."""

    def refused(
        self, identity: Identity, operation: str, resource_type: str = "", resource: str = "", *,
        reason: str = "", request_id: str = "",
    ) -> None:  # fmt: skip
        """Somebody may not do what he asked for; `operation` as `READ`, `resource_type` as `TOPIC`, `reason` a code, no text of a peer."""
        self.record(
            AuditEvent(
                kind=Kind.REFUSAL,
                operation=operation,
                outcome=Outcome.REFUSED,
                actor=Actor.of(identity, request_id),
                resource_type=resource_type,
                resource=resource,
                reason=reason,
            )
        )

    def login(
        self, identity: Identity, *, right: bool, reason: str = "", request_id: str = ""
    ) -> None:
        """Somebody logged in, or tried to. `identity`: with the mechanism and the address, of a wrong login with the name that was tried.

        `reason`: a code as `wrong-credentials`, never what was sent.
        """
        self.record(
            AuditEvent(
                kind=Kind.LOGIN,
                operation="login",
                outcome=Outcome.DONE if right else Outcome.REFUSED,
                actor=Actor.of(identity, request_id),
                reason=reason,
            )
        )

    def peer_refused(self, principal: str, host: str, *, code: str, node: str = "") -> None:
        """A node was not spoken with; `principal`: who it says, or its certificate says, that it is."""
        self.record(
            AuditEvent(
                kind=Kind.PEER_REFUSAL,
                operation="handshake",
                outcome=Outcome.REFUSED,
                actor=Actor(principal=principal, host=host),
                resource_type="NODE",
                resource=node,
                reason=code,
            )
        )


NO_AUDIT: Final = AuditTrail()
"""Of a node that keeps none, and of tests."""


@contextmanager
def told_unless_said(recorded: Recorded) -> Iterator[Recorded]:
    """Say `UNKNOWN` of what ends without a word: a cancelled task, an error nobody thought of."""
    try:
        yield recorded
    finally:
        recorded.ended(Outcome.UNKNOWN, "it ended without an answer")
