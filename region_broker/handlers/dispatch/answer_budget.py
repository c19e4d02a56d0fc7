"""What one answer may hold and cost, where each name may be asked for as often as a client likes.

INV-AB1  an answer that describes things takes DESCRIBED_BYTES_MAX, and half of what the memory budget has left or DESCRIBED_BYTES_FREE, at
         most (as objects, so on the wire it is shorter); what is beyond gets an error of its own, but the first thing asked for is always described
INV-AB2  a name asked again is answered again, as Kafka does, and counts again; it is looked up once
Not here: the text of the refusal's row (each API's file), pages of topics (`describe_topic_partitions`).
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ADMIN_ITEMS_MAX, DESCRIBED_BYTES_FREE, DESCRIBED_BYTES_MAX
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.memory_budget import Share
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
    """Return a row for each name: what `describe` says, or `refuse` from where the answer is full."""
    memory, share, yielding = ctx.services.memory, Share(), CooperativeYield()
    left_bytes = min(DESCRIBED_BYTES_MAX, max(memory.left_bytes // 2, DESCRIBED_BYTES_FREE))
    known: dict[_Name, tuple[Fields, int]] = {}
    rows: list[Fields] = []
    taken_bytes = 0
    try:
        for name in names:
            await yielding.row()
            if rows and taken_bytes >= left_bytes:
                rows.append(refuse(name))
                continue
            if name not in known:
                row = await describe(name, yielding)
                known[name] = row, await _size_bytes(row, yielding)
            row, size_bytes = known[name]
            if rows and taken_bytes + size_bytes > left_bytes:
                taken_bytes = left_bytes  # full: what comes after is not looked up any more
                rows.append(refuse(name))
                continue
            taken_bytes += size_bytes
            memory.hold(share, taken_bytes)
            rows.append(row)
    finally:
        memory.hold(share, 0)  # once written, it counts as the connection's answer
    return rows


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
