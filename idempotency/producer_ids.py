"""Blocks of producer ids that no two regions can ever hand out twice (C11).

INV-I1  Bits 60..62 of a producer id are the ordinal of the region that gave it out, so regions that
        cannot talk to each other still never give out the same id. Bit 63 is 0: ids are not negative.
INV-I2  Block `index` of a region is a pure function: two blocks of other indexes share no id.
INV-I3  Indexes are drawn in stretches of `STRETCH_BLOCKS`, from anywhere in the region's range: what a folder remembers
        of earlier ones counts for nothing, because the folder may be lost, or an older copy.
INV-I4  Ids of transactional producers lie above all others of their region: an id says by itself whether its producer
        writes in transactions, before anybody has heard of it (INV-S6). Those that older versions gave out say nothing.

Not here: drawing (`region_broker.ledgers.id_blocks`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from idempotency.identity import ProducerId

REGION_ORDINAL_BITS: Final = 3
REGION_ORDINAL_MAX: Final = (1 << REGION_ORDINAL_BITS) - 1
_ORDINAL_SHIFT: Final = 60
_PER_REGION: Final = 1 << _ORDINAL_SHIFT
BLOCK_IDS_DEFAULT: Final = 1000
STRETCH_BLOCKS: Final = 16
STRETCH_BITS: Final = 46
TRANSACTIONAL_STRETCH_BITS: Final = 40
TRANSACTIONAL_BLOCKS_FROM: Final = STRETCH_BLOCKS << STRETCH_BITS
_TRANSACTIONAL_FROM: Final = TRANSACTIONAL_BLOCKS_FROM * BLOCK_IDS_DEFAULT
# A stretch that left its region's range would hand out ids of the next ordinal (INV-I1).
assert (
    TRANSACTIONAL_BLOCKS_FROM + (STRETCH_BLOCKS << TRANSACTIONAL_STRETCH_BITS)
) * BLOCK_IDS_DEFAULT <= _PER_REGION


class ProducerIdsExhausted(RuntimeError):
    """A region has no producer id left; handing out a used one would break deduplication."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """`count` consecutive producer ids from `first`."""

    first: ProducerId
    count: int

    @property
    def end(self) -> int:
        """The id behind the last one."""
        return self.first + self.count

    def __iter__(self) -> Iterator[ProducerId]:
        """Yield each id of the block."""
        return (ProducerId(number) for number in range(self.first, self.end))


def is_of_transactions(producer_id: ProducerId) -> bool:
    """Return whether an id was given to a transactional producer; one that an older version gave is not known by it (INV-I4)."""
    return producer_id & (_PER_REGION - 1) >= _TRANSACTIONAL_FROM


def block_for(region_ordinal: int, index: int, size: int = BLOCK_IDS_DEFAULT) -> ProducerIdBlock:
    """Return block number `index` (from 0) of `size` ids of the region.

    Raises:
        ProducerIdsExhausted: the block would leave the region's range.
    """
    assert 0 <= region_ordinal <= REGION_ORDINAL_MAX, region_ordinal
    assert index >= 0, index
    assert size > 0, size
    start = index * size
    if start + size > _PER_REGION:
        raise ProducerIdsExhausted(
            f"region {region_ordinal} has no producer id block {index}: "
            f"its {_PER_REGION} ids are used up"
        )
    return ProducerIdBlock(ProducerId((region_ordinal << _ORDINAL_SHIFT) + start), size)
