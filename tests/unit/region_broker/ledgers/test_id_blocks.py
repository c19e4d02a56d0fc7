"""Producer ids are drawn in stretches, so that nothing a folder has forgotten gives one out twice (C11)."""

import itertools
import random
from uuid import UUID

from idempotency.identity import ProducerId
from idempotency.producer_ids import (
    STRETCH_BITS,
    STRETCH_BLOCKS,
    TRANSACTIONAL_STRETCH_BITS,
    is_of_transactions,
)
from region_broker.ledgers.id_blocks import DrawnIdBlocks


class Draws:
    """`Chance` that draws what it is told."""

    def __init__(self, *draws: int, bits: int = STRETCH_BITS) -> None:
        self._draws = iter(draws)
        self._bits = bits

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def uuid(self) -> UUID:
        return UUID(int=0)

    def randbits(self, bit_count: int) -> int:
        assert bit_count == self._bits
        return next(self._draws)


# Holds INV-AI1, INV-I3.
async def test_C11_a_stretch_is_used_up_before_another_is_drawn() -> None:
    last = (1 << STRETCH_BITS) - 1
    for ordinal, first in itertools.product((0, 7), (0, last)):
        blocks = DrawnIdBlocks(Draws(first, 5), ordinal)
        given = [await blocks.next_block() for _ in range(STRETCH_BLOCKS + 1)]
        assert all(left.end == right.first for left, right in itertools.pairwise(given[:-1]))
        start = (ordinal << 60) + first * STRETCH_BLOCKS * 1000
        assert given[0].first == start
        assert given[-1].first == (ordinal << 60) + 5 * STRETCH_BLOCKS * 1000
        assert {(block.end - 1) >> 60 for block in given} == {ordinal}


async def test_INV_I4_ids_of_transactions_lie_above_all_others_of_their_region() -> None:
    for ordinal in (0, 7):
        highest = DrawnIdBlocks(Draws((1 << STRETCH_BITS) - 1), ordinal)
        others = [await highest.next_block() for _ in range(STRETCH_BLOCKS)]
        assert not is_of_transactions(ProducerId(others[-1].end - 1))
        for draw in (0, (1 << TRANSACTIONAL_STRETCH_BITS) - 1):
            chance = Draws(draw, bits=TRANSACTIONAL_STRETCH_BITS)
            blocks = DrawnIdBlocks(chance, ordinal, transactional=True)
            given = [await blocks.next_block() for _ in range(STRETCH_BLOCKS)]
            assert all(left.end == right.first for left, right in itertools.pairwise(given))
            assert others[-1].end <= given[0].first
            assert {each >> 60 for each in (given[0].first, given[-1].end - 1)} == {ordinal}
            assert all(
                is_of_transactions(ProducerId(each))
                for block in given
                for each in (block.first, block.end - 1)
            )
