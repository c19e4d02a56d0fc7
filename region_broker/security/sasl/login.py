"""How far a connection is with its login, and what may come next: a table, and one object per connection (KIP-43, KIP-152, KIP-368).

INV-LGI1  before its login a connection is served ApiVersions, SaslHandshake and SaslAuthenticate, and nothing else
INV-LGI2  who logs in again stays who it is, by the same mechanism; what comes between the handshake and the end of that login ends
          the connection
INV-LGI3  a session ends with what proved it, or after `sasl_max_reauth_ms`: then the connection must log in again before anything else
INV-LGI4  who asks for anything else before a login, or behind the end of a session, is a refusal in the audit trail
INV-LGI5  who logs in again within AGAIN_AFTER_MS of the last time is refused, and goes on as he is; that is counted and told as any login that is refused
Not here: the exchanges (`scram`, `plain`, `bearer`), who runs them (`desk`), the requests (`handlers.sasl`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from region_broker.limits import FREE_HELD_BYTES
from region_broker.security.identity import Identity
from region_broker.security.sasl.refusals import LoginRefused

API_VERSIONS_KEY: Final = 18
HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
BEFORE_LOGIN: Final = frozenset({API_VERSIONS_KEY, HANDSHAKE_KEY, AUTHENTICATE_KEY})
"""What is served to whoever has not logged in (INV-LGI1)."""
AGAIN_AFTER_MS: Final = 1_000
"""Nobody logs in again sooner than that after the last time (Kafka's, too)."""
FRAME_BYTES_MAX: Final = 60_000
"""A request before the login; Kafka's `sasl.server.max.receive.size` is 524,288, and a token is 16 kB. A part of one takes no memory that
others wait for."""
assert FRAME_BYTES_MAX < FREE_HELD_BYTES
LOGIN_TIMEOUT_MS: Final = 30_000
"""Who has to log in and has not by then is cut off."""


class Stage(Enum):
    """Where a connection stands."""

    STRANGER = auto()
    """It has said nothing that matters."""
    CHOSEN = auto()
    """It has chosen a mechanism, and is in its exchange."""
    KNOWN = auto()
    """It has logged in."""
    CHOSEN_AGAIN = auto()
    """It had logged in, and is in the exchange of another login."""


NEXT: Final[dict[tuple[Stage, int], Stage]] = {
    (Stage.STRANGER, HANDSHAKE_KEY): Stage.CHOSEN,
    (Stage.CHOSEN, AUTHENTICATE_KEY): Stage.KNOWN,
    (Stage.KNOWN, HANDSHAKE_KEY): Stage.CHOSEN_AGAIN,
    (Stage.CHOSEN_AGAIN, AUTHENTICATE_KEY): Stage.KNOWN,
}
"""What a request leads to at its end; another request of a login is out of order."""


@dataclass(frozen=True, slots=True)
class Proved:
    """Whom an exchange has proved. `until_wall_ms`: when what proved it ends, 0: never."""

    principal: str
    until_wall_ms: int = 0
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of an exchange came to; `proved` at its end. `refused`: why it will fail, where the client is told so in an answer of the
    mechanism's own, and the failure comes behind its next message."""

    answer: bytes
    proved: Proved | None = None
    refused: LoginRefused | None = None


class Exchange(Protocol):
    """One login of one mechanism."""

    async def step(self, message: bytes) -> Outcome:
        """Take the client's next message; raises `LoginRefused`."""
        ...


@dataclass(slots=True, eq=False)
class Login:
    """Changed on the event loop only, by the desk.

    `is_busy`: a message is being judged. `is_refused`: it will fail, and that was counted. `ends`: cancels the timer that ends the session.
    """

    stage: Stage = Stage.STRANGER
    mechanism: str = ""
    exchange: Exchange | None = None
    is_busy: bool = False
    is_refused: bool = False
    identity: Identity | None = None
    logged_in_ms: int = 0
    ends: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Let the timer of its session go, and with it what the timer holds: this (INV-PN7)."""
        ends, self.ends = self.ends, lambda: None
        ends()

    def may(self, api_key: int) -> bool:
        """Return whether such a request may come now."""
        return (self.stage, api_key) in NEXT and not self.is_busy
