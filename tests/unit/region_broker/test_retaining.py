"""A round of retention at a node: what is held is looked at once, and the round ends where the node's role does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.pieces import Pieces
from region_broker.controller.metadata_image import DEFAULT_DOMAIN
from region_broker.node.retaining import Retaining

PIECES = 5


class Now:
    """The newest metadata, and who leads by it."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench

    @property
    def image(self) -> object:
        leadership = SimpleNamespace(leader_epoch=self._bench.leader_epoch)
        return SimpleNamespace(
            leadership=leadership, domains={DEFAULT_DOMAIN: self._bench.region_epoch}
        )

    @property
    def follows(self) -> bool:
        return self._bench.follows


class Bench:
    """A node that leads its region of several nodes; what its retention does is noted."""

    def __init__(self) -> None:
        self.leads, self.follows, self.leader_epoch, self.region_epoch = True, False, 7, 1
        self.looks = self.pieces = 0
        self.happens: Callable[[], None] = lambda: None
        """What happens behind the second piece."""

    def _maintain(self, *_asked: object) -> Pieces[int]:
        for number in range(PIECES):
            self.pieces += 1
            if number == 1:
                self.happens()
            yield
        return 0

    async def _look(self, _parts: object) -> None:
        self.looks += 1

    async def _reached_of(self) -> object:
        return lambda _partition: None

    async def run(self) -> None:
        storage = SimpleNamespace(
            hold=SimpleNamespace(look=self._look, of=None),
            metadata=Now(self),
            partitions=SimpleNamespace(upkeep=SimpleNamespace(maintain=self._maintain)),
        )
        replication = SimpleNamespace(
            leadership=Now(self), reached_of=self._reached_of, keeps_rounds=None
        )
        retaining = Retaining(
            storage=cast("Any", storage),
            hold_parts=cast("Any", None),
            leads=lambda: self.leads,
            replication=cast("Any", replication),
            holding=None,
        )
        await retaining.run()


async def test_what_is_held_is_looked_at_once_for_all_pieces_of_a_round() -> None:
    bench = Bench()
    await bench.run()
    assert (bench.looks, bench.pieces) == (1, PIECES)


@pytest.mark.parametrize(
    ("what", "value", "in_the_next"),
    [
        ("leads", False, 0),
        ("follows", True, PIECES),
        ("leader_epoch", 8, PIECES),
        ("region_epoch", 2, PIECES),
    ],
)
async def test_INV_NRT1_a_round_ends_where_the_role_does(
    what: str, value: int, in_the_next: int
) -> None:
    bench = Bench()
    bench.happens = lambda: setattr(bench, what, value)
    await bench.run()
    assert bench.pieces == 2
    await bench.run()
    assert bench.pieces == 2 + in_the_next
