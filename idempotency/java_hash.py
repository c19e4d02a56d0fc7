"""Java's `String.hashCode`, because Kafka picks a ledger shard by it and its tools do the same sum.

INV-J1  the shard of a name is `abs(hashCode) % shard_count`, where abs(-2^31) is 0 (`Utils.abs`)
A name lands on the same shard in every region, for ever: a domain's shard count is fixed.

Rule C13 (transactional ids), and `partitionFor` of the group coordinator (group ids).
Not here: how many shards there are (`DomainImage.shard_count`).
"""

from functools import lru_cache
from typing import Final

# A transaction asks for the shard of its name four times, and a sum over 25 characters takes 4 us.
_REMEMBERED_NAMES_MAX: Final = 1_024
_REMEMBERED_CHARS_MAX: Final = 128
_INT32_SPAN: Final = 1 << 32
_INT32_MAX: Final = (1 << 31) - 1
_INT32_MIN: Final = -(1 << 31)


def java_string_hash(text: str) -> int:
    """Return `text.hashCode()` of Java: a signed 32-bit sum over the UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for index in range(0, len(units), 2):
        total = (total * 31 + (units[index] << 8 | units[index + 1])) % _INT32_SPAN
    return total - _INT32_SPAN if total > _INT32_MAX else total


def ledger_shard(name: str, shard_count: int) -> int:
    """Return the ledger shard (0 .. shard_count-1) of a group id or a transactional id (C13)."""
    if len(name) <= _REMEMBERED_CHARS_MAX:
        return _remembered_shard(name, shard_count)
    return _shard(name, shard_count)


@lru_cache(_REMEMBERED_NAMES_MAX)
def _remembered_shard(name: str, shard_count: int) -> int:
    return _shard(name, shard_count)


def _shard(name: str, shard_count: int) -> int:
    assert shard_count > 0, shard_count
    hashed = java_string_hash(name)
    return 0 if hashed == _INT32_MIN else abs(hashed) % shard_count
