"""Java's `String.hashCode`, because Kafka picks a ledger shard by it and its tools do the same sum.

INV-J1  the shard of a name is `abs(hashCode) % shard_count`, where abs(-2^31) is 0 (`Utils.abs`)
INV-J2  a long name is summed once for as long as one request asks for its shard: each of its batches and rows does, and
        32,767 letters take 2 ms
A name lands on the same shard in every region, for ever: a domain's shard count is fixed.

Rule C13 (transactional ids), and `partitionFor` of the group coordinator (group ids).
Not here: how many shards there are (`DomainImage.shard_count`).
"""

import struct
from functools import lru_cache
from operator import mul
from typing import Final

# A transaction asks for the shard of its name four times, and a sum over 25 characters takes 3 us.
_REMEMBERED_NAMES_MAX: Final = 1_024
_REMEMBERED_CHARS_MAX: Final = 128
# Those of the requests that are served right now, with up to 128 KB each.
_REMEMBERED_LONG_NAMES_MAX: Final = 8
_INT32_SPAN: Final = 1 << 32
_INT32_MAX: Final = (1 << 31) - 1
_INT32_MIN: Final = -(1 << 31)
_BLOCK_UNITS: Final = 1_024
_POWERS: Final[tuple[int, ...]] = tuple(
    pow(31, exponent, _INT32_SPAN) for exponent in reversed(range(_BLOCK_UNITS))
)
_POWER_OF_BLOCK: Final[int] = pow(31, _BLOCK_UNITS, _INT32_SPAN)


def java_string_hash(text: str) -> int:
    """Return `text.hashCode()` of Java: a signed 32-bit sum over the UTF-16 code units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    # The odd block comes first: all behind it weigh the same.
    first_units = len(units) % _BLOCK_UNITS
    total: int = sum(map(mul, units, _POWERS[_BLOCK_UNITS - first_units :])) % _INT32_SPAN
    for start in range(first_units, len(units), _BLOCK_UNITS):
        block = sum(map(mul, units[start : start + _BLOCK_UNITS], _POWERS))
        total = (total * _POWER_OF_BLOCK + block) % _INT32_SPAN
    return total - _INT32_SPAN if total > _INT32_MAX else total


def ledger_shard(name: str, shard_count: int) -> int:
    """Return the ledger shard (0 .. shard_count-1) of a group id or a transactional id (C13)."""
    if len(name) <= _REMEMBERED_CHARS_MAX:
        return _remembered_shard(name, shard_count)
    return _remembered_long_shard(name, shard_count)


@lru_cache(_REMEMBERED_NAMES_MAX)
def _remembered_shard(name: str, shard_count: int) -> int:
    return _shard(name, shard_count)


@lru_cache(_REMEMBERED_LONG_NAMES_MAX)
def _remembered_long_shard(name: str, shard_count: int) -> int:
    return _shard(name, shard_count)


def _shard(name: str, shard_count: int) -> int:
    assert shard_count > 0, shard_count
    hashed = java_string_hash(name)
    return 0 if hashed == _INT32_MIN else abs(hashed) % shard_count
