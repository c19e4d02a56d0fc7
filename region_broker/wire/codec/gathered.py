"""An answer in several buffers: what was read of logs is sent as it lies, and not copied into one buffer first.

INV-WGA1  a gathered answer has the bytes that one buffer of its parts has; what is small is joined with its neighbours
A copy of a Fetch answer of some megabytes takes memory that the next one finds given back to the system: a page fault for each 4 KiB.
Not here: what the parts mean (`fast_paths`), sending them (`wire.connection`, the network port).
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from region_broker.ports.network import Buffer

LARGE_PART_BYTES: Final = 32 * 1024
"""What a part must have to be worth a buffer of its own: less is copied in less time than a buffer takes to be handled."""


class GatheredAnswer:
    """Header and body of an answer, in order, in several buffers; `len` is its size in bytes."""

    __slots__ = ("_size_bytes", "parts")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        """Hold the parts, which nobody changes any more."""
        self.parts = parts
        self._size_bytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def with_front(self, front: Buffer) -> "GatheredAnswer":
        """Return the same answer with another first part."""
        return GatheredAnswer((front, *self.parts[1:]))


AnswerBytes: TypeAlias = Buffer | GatheredAnswer


def parts_of(answer: AnswerBytes) -> Sequence[Buffer]:
    """Return the buffers of an answer, in order."""
    return answer.parts if isinstance(answer, GatheredAnswer) else (answer,)


def gathered(parts: Sequence[Buffer]) -> AnswerBytes:
    """Return the parts as one answer (INV-WGA1): one buffer where none of them is large."""
    if all(len(part) < LARGE_PART_BYTES for part in parts):
        return b"".join(parts)
    return GatheredAnswer(tuple(_joined(parts)))


def _joined(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE_PART_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)
