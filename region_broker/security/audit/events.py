"""What happened, as the audit trail is told it: who, from where, what, to what, and the outcome.

INV-AUD1  an event holds names, numbers and codes, never a secret, and nothing of a record: whoever makes one chooses each field, and no
          text of a peer is longer here than `NAME_CHARS_MAX`
Who acts is known where a request is taken, and needed where metadata change, several calls below: so the request is put into the
context (`acting_as`), which tasks that are begun for it inherit.
Not here: how an event becomes a line (`chain`), where it goes (`recorder`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import msgspec

from region_broker.security.identity import Identity

NAME_CHARS_MAX: Final = 300
DETAIL_CHARS_MAX: Final = 64 * 1024
"""Of all details of an event together, as they are written (`chain.written_chars`)."""
LEFT_OUT: Final = "left_out"
"""The detail that says how many others are not told: whoever tells adds what he left out himself."""
HIDDEN: Final = "(hidden)"
"""Stands for a value that is, or may be, a secret."""
_SECRET_WORDS: Final = ("password", "secret", "token", "credential", "jaas", "private", "_key")


class Kind(StrEnum):
    """What sort of event it is."""

    CHANGE = "change"
    """Of the metadata, or of what hangs on them."""
    ORDER = "order"
    """Of an operator, over HTTP."""
    STEP = "step"
    """Of a failover."""
    REFUSAL = "refusal"
    """Somebody may not do what he asked for."""
    LOGIN = "login"
    PEER_REFUSAL = "peer-refusal"
    """A node that is not spoken with."""
    TRAIL = "trail"
    """Of the trail itself: its beginning, starts, what it lost."""


class Outcome(StrEnum):
    """What came of it."""

    INTENDED = "intended"
    """It is about to be done; a later record that `answers` this one says what came of it."""
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    """Nothing has changed, for a reason that may pass."""
    UNKNOWN = "unknown"
    """It may have been done, or be done yet."""


class Actor(msgspec.Struct, frozen=True):
    """Who acts, and in which request. Without a principal: the node by itself."""

    principal: str = ""
    host: str = ""
    mechanism: str = ""
    token_id: str = ""
    request_id: str = ""

    @classmethod
    def of(cls, identity: Identity, request_id: str = "") -> "Actor":
        """Return the actor that an identity is."""
        return cls(
            identity.principal, identity.host, identity.mechanism, identity.token_id, request_id
        )


ITSELF: Final = Actor()
"""Nobody asked this node."""
Detail: TypeAlias = str | int | bool | list[str]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `answers`: the sequence number of the intent that this is the outcome of, 0 where there was none."""

    kind: Kind
    operation: str
    outcome: Outcome
    actor: Actor = ITSELF
    resource_type: str = ""
    resource: str = ""
    reason: str = ""
    details: Mapping[str, Detail] = {}
    answers: int = 0
    count: int = 1
    """How many equal ones this stands for."""


class Acting(Protocol):
    """A request that somebody made."""

    def actor(self) -> Actor:
        """Return who made it."""
        ...


_acting: Final[ContextVar[Acting | None]] = ContextVar("audit_acting", default=None)


@contextmanager
def acting_as(request: Acting) -> Iterator[None]:
    """Let what is done within, and in tasks that are begun there, be done for `request`."""
    token = _acting.set(request)
    try:
        yield
    finally:
        _acting.reset(token)


def present_actor() -> Actor:
    """Return for whom this step is done."""
    request = _acting.get()
    return ITSELF if request is None else request.actor()


def is_secret(key: str) -> bool:
    """Return whether the value under a key is not for the trail. What only sounds like a secret is hidden, too."""
    lowered = key.lower().replace(".", "_").replace("-", "_")
    return any(word in lowered for word in _SECRET_WORDS)


def shown_value(key: str, value: str) -> str:
    """Return a value for the trail, or what stands for a secret."""
    return HIDDEN if is_secret(key) else value


def clipped(text: str) -> str:
    """Return a text that is not longer than the trail takes, and says what it left out."""
    if len(text) <= NAME_CHARS_MAX:
        return text
    return f"{text[:NAME_CHARS_MAX]}...(+{len(text) - NAME_CHARS_MAX})"
