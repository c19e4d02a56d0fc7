"""What one answer may hold and cost, where each name may be asked for as often as a client likes.

INV-AB1  an answer that describes things takes DESCRIBED_BYTES_MAX, and half of what the memory budget has left or DESCRIBED_BYTES_FREE, at
         most (as objects, so on the wire it is shorter); what is beyond gets an error of its own, but the first thing asked for is always described
INV-AB3  who describes more than FREE_HELD_BYTES, or works for it longer than for one step of the loop, has a place among those that list, and
         room in the memory budget, before it goes on (`listing_places`): of what it made it holds about FREE_HELD_BYTES while it waits, and the
         offsets that it read, and names of topics by their ids. What is less waits for nobody. One of a connection is made at once (INV-WQ5)
INV-AB2  a name asked again is answered again, as Kafka does, and counts again; it is looked up once
Not here: the text of the refusal's row (each API's file), pages of topics (`describe_topic_partitions`).
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import Place, RequestContext
from region_broker.limits import (
    ADMIN_ITEMS_MAX,
    DESCRIBED_BYTES_FREE,
    DESCRIBED_BYTES_MAX,
    FREE_HELD_BYTES,
)
from region_broker.wire.cooperative_yield import CooperativeYield, give_way
from region_broker.wire.memory_budget import MemoryBudget, Share
from region_broker.wire.server import CloseConnection

_Name = TypeVar("_Name", bound=Hashable)
Describe = Callable[[_Name, CooperativeYield], Awaitable[Fields]]

TOO_LARGE: Final = ErrorCode.invalid_request
TOO_LARGE_TEXT: Final = "the answer would become too large; ask for fewer in one request"
_ROW_BYTES: Final = (
    400  # what a row takes in memory beside its texts, about; on the wire it is less
)
_VALUE_BYTES: Final = 8


def check_count(what: str, count: int) -> None:
    """Raise `CloseConnection` when one request names more than any client does."""
    if count > ADMIN_ITEMS_MAX:
        raise CloseConnection(f"a {what} request names {count} things, more than {ADMIN_ITEMS_MAX}")


async def described(
    ctx: RequestContext,
    names: Sequence[_Name],
    describe: Describe[_Name],
    refuse: Callable[[_Name], Fields],
) -> list[Fields]:
    """Return a row for each name: what `describe` says, or `refuse` from where the answer is full.

    `describe` is called again for what is large alone, once there is a place for it, and what it returned first is dropped (INV-AB3).
    """
    memory, share = ctx.services.memory, Share()
    yielding = _Placed(ctx.listing, memory)
    known: dict[_Name, tuple[Fields, int]] = {}
    rows: list[Fields] = []
    taken_bytes = 0

    async def measured(name: _Name) -> tuple[Fields, int]:
        if name not in known:
            known[name] = await _measured(name, describe, yielding)
        size_bytes = known[name][1]
        if yielding.is_placed or taken_bytes + size_bytes <= FREE_HELD_BYTES:
            return known[name]
        if size_bytes > FREE_HELD_BYTES:
            del known[name]  # what waits is counted by nobody: it is made anew
        await yielding.take()
        return await measured(name)

    try:
        for name in names:
            await yielding.row()
            if rows and taken_bytes >= yielding.left_bytes:
                rows.append(refuse(name))
                continue
            row, size_bytes = await measured(name)
            if rows and taken_bytes + size_bytes > yielding.left_bytes:
                taken_bytes = DESCRIBED_BYTES_MAX  # full: nothing more is looked up
                rows.append(refuse(name))
                continue
            taken_bytes += size_bytes
            memory.hold(share, taken_bytes)
            rows.append(row)
    finally:
        memory.hold(share, 0)  # once written, it counts as the connection's answer
    return rows


class _Placed(CooperativeYield):
    """Gives way once there is a place for what is being described: what takes so long is large (INV-AB3).

    `left_bytes`: what the answer may take, by the room that there was when it had its place, or when it began.
    """

    __slots__ = ("_memory", "_place", "left_bytes")

    def __init__(self, place: Place | None, memory: MemoryBudget) -> None:
        """Take `place`, where there is one, and room in `memory`."""
        super().__init__()
        self._place = place
        self._memory = memory
        self.left_bytes = _left_bytes(memory)

    @property
    def is_placed(self) -> bool:
        """Return whether nothing needs to be waited for."""
        return self._place is None or self._place.is_taken

    async def take(self) -> None:
        """Return once it has its place; raises `CloseConnection` (INV-HLP2)."""
        if self._place is None or self._place.is_taken:
            return
        await self._place.take()
        self.left_bytes = _left_bytes(self._memory)

    async def row(self, cost: int = 1) -> None:
        """See `CooperativeYield`."""
        if self.due(cost):
            await self.take()
            await give_way()


def _left_bytes(memory: MemoryBudget) -> int:
    return min(DESCRIBED_BYTES_MAX, max(memory.left_bytes // 2, DESCRIBED_BYTES_FREE))


async def _measured(
    name: _Name, describe: Describe[_Name], yielding: CooperativeYield
) -> tuple[Fields, int]:
    row = await describe(name, yielding)
    return row, await _size_bytes(row, yielding)


async def _size_bytes(fields: Mapping[str, Any], yielding: CooperativeYield) -> int:
    """Return about what these fields take."""
    total_bytes = 0
    waiting: list[Mapping[str, Any]] = [fields]
    while waiting:
        await yielding.row()
        total_bytes += _ROW_BYTES
        for value in waiting.pop().values():
            if isinstance(value, str | bytes | memoryview):
                total_bytes += len(value)
            elif isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, list | tuple):
                if value and isinstance(value[0], Mapping):
                    waiting.extend(value)
                else:
                    total_bytes += sum(
                        len(each) if isinstance(each, str | bytes) else _VALUE_BYTES
                        for each in value
                    )
    return total_bytes
