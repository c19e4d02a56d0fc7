"""What the compatibility tests ask of a client, whichever it is: one face over three unmodified libraries.

The faces add nothing: no retry, no repair, no interpretation. A call that the library refuses fails the test.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pytest

POLL_S = 0.1
CALL_S = 20.0
POLLS_MAX = 400


class Found(NamedTuple):
    """One record as a consumer was given it."""

    partition: int
    offset: int
    value: bytes


class Member(Protocol):
    """A consumer in a group; commits only when told."""

    def poll(self) -> list[Found]:
        """Return what arrived within about `POLL_S`."""
        ...

    def assignment(self) -> set[int]:
        """Return the partitions held."""
        ...

    def commit(self) -> None:
        """Commit the position after what was polled."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Writer(Protocol):
    """A transactional producer, its transactions initialised."""

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def send(self, topic: str, value: bytes) -> None:
        """Write to partition 0 and wait for nothing."""
        ...

    def flush(self) -> None:
        """Wait until all that was sent is answered."""
        ...

    def send_offset(self, member: Member, topic: str, offset: int) -> None:
        """Commit `offset` of partition 0 for the member's group in the transaction."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def abort(self) -> None:
        """Abort it."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Client(Protocol):
    """One library."""

    @property
    def name(self) -> str:
        """Return the package's name."""
        ...

    @property
    def codecs(self) -> Sequence[str]:
        """Return the codecs it has here."""
        ...

    def produce(
        self, bootstrap: str, topic: str, values: Sequence[bytes], *, codec: str = "none",
        idempotent: bool = False, partitions: int = 1,
    ) -> list[int]:  # fmt: skip
        """Write round-robin over the first `partitions`; return the offsets answered, in order."""
        ...

    def member(self, bootstrap: str, topic: str, group: str, *, committed: bool = True) -> Member:
        """Join a group from the earliest offset; `committed`: read committed."""
        ...

    def writer(self, bootstrap: str, transactional_id: str) -> Writer:
        """Open a transactional producer."""
        ...

    def create_topic(
        self, bootstrap: str, topic: str, partition_count: int, configs: dict[str, str]
    ) -> None:
        """Create a topic."""
        ...

    def topics(self, bootstrap: str) -> set[str]:
        """List the topics."""
        ...

    def partition_count(self, bootstrap: str, topic: str) -> int:
        """Describe a topic."""
        ...

    def configs(self, bootstrap: str, topic: str) -> dict[str, str]:
        """Describe a topic's configs."""
        ...

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        """Delete a topic."""
        ...


def read_until(member: Member, last: bytes) -> list[bytes]:
    """Return the values up to `last`, in the order given; fails when it does not come."""
    values: list[bytes] = []
    for _ in range(POLLS_MAX):
        values += [found.value for found in member.poll()]
        if last in values:
            return values
    raise AssertionError(f"{last!r} did not come; what came: {len(values)}, {values[-3:]}")


def repeated(read: Callable[[], Any], wanted: Any) -> None:
    """Read until what was changed has come to whom the client asks: any node of a region, or a mirror."""
    found = None
    for _ in range(POLLS_MAX):
        found = read()
        if found == wanted:
            return
    pytest.fail(f"{found}, not {wanted}")
