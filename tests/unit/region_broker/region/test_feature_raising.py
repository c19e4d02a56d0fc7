"""Who keeps a region's feature level from being raised (INV-FUP1)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from region_broker.controller.cluster_commands import FinalizeLevel
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.raft.entries import Membership
from region_broker.controller.refusals import CommandRefused
from region_broker.region.feature_raising import FeatureRaising
from tests.fixtures.cluster_images import in_sync, member


class Store:
    """Three registered nodes, and the quorum that the test says."""

    def __init__(self, membership: Membership) -> None:
        self.image = in_sync()
        self.group = SimpleNamespace(membership=membership)
        self.levels = SUPPORTED
        self.asked: list[object] = []

    async def apply(self, command: object) -> None:
        self.asked.append(command)


@pytest.mark.parametrize(
    "membership",
    [
        Membership((member(1), member(2), member(4)), (member(3),)),
        Membership((member(1), member(2), member(3)), (member(4),)),
        Membership((member(1), member(2), member(3)), (member(3, folder=2),)),
    ],
    ids=["a voter", "a learner", "another folder of a node"],
)
async def test_INV_FUP1_a_member_that_has_not_registered_keeps_the_level(
    membership: Membership,
) -> None:
    store = Store(membership)
    with pytest.raises(CommandRefused, match="have not registered: start them, or remove them"):
        await FeatureRaising("eu", 1, cast("Any", store)).raise_to(2, dry_run=False)
    assert store.asked == []


async def test_INV_FUP1_where_all_have_registered_it_is_raised() -> None:
    store = Store(Membership((member(1), member(2)), (member(3),)))
    assert await FeatureRaising("eu", 1, cast("Any", store)).raise_to(2, dry_run=False)
    assert store.asked == [FinalizeLevel(2)]
