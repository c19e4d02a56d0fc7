"""That the judges of logs whose beginning goes, and of tidemarks, see what is wrong."""

from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest

from chaos.history import record_value
from chaos.story import Place, Sighting, Story
from tests.simulation import cut_judge
from tests.simulation.network import Fabric
from tests.simulation.regions_swarm.logs import FILLER, TOPIC, RetainedLoad
from tests.simulation.swarm.workloads.setting import End, Reach, Setting


def place(offset: int) -> Place:
    return Place(TOPIC, 0, offset, f"eu.0 {offset}")


class Shown(End):
    """The end of a life in which the regions show these, without a word."""

    starts_at: dict[str, int]
    offsets: dict[str, Sequence[int]]

    async def starts(self, region: str, topic: str, partitions: int) -> list[int]:
        return [self.starts_at[region], 0]

    async def places(
        self, region: str, topic: str, partitions: int, starts: Sequence[int] = ()
    ) -> frozenset[Place]:
        filled = [place(offset) for offset in self.offsets[region]]
        return frozenset(p._replace(value=f"{p.value} {FILLER.decode()}") for p in filled)


@pytest.mark.parametrize(
    ("starts", "offsets", "wrong"),
    [
        ({"eu": 0, "us": 0}, {"eu": (0, 1, 2), "us": (0, 1, 2)}, ""),
        ({"eu": 1, "us": 2}, {"eu": (1, 2), "us": (2,)}, ""),
        ({"eu": 0, "us": 0}, {"eu": (0, 2), "us": (0, 1, 2)}, "acknowledged, not removed, and gone in eu"),
        ({"eu": 2, "us": 0}, {"eu": (2,), "us": (0, 1)}, "acknowledged, not removed, and gone in us"),
        ({"eu": 0, "us": 0}, {"eu": (0, 1, 2, 3), "us": (0, 1, 2)}, "other records behind"),
    ],
)  # fmt: skip
async def test_INV_RGL1_INV_RGL2_what_lies_behind_the_log_start_is_there_and_the_same_in_both(
    starts: dict[str, int], offsets: dict[str, Sequence[int]], wrong: str
) -> None:
    reach = Reach(cast("Fabric", None), cast("Any", {"eu": None, "us": None}))
    fabric = Fabric(Random(1))
    load = RetainedLoad(Setting(Reach(fabric, reach.regions), Random(1), 1.0))
    load.writers[0].acked = [Sighting(1.0, "eu", place(offset), False) for offset in range(3)]
    end = Shown(reach, "eu", Story())
    end.starts_at, end.offsets = starts, offsets
    assert wrong in " ".join(await load.violations(end))
    assert bool(await load.violations(end)) == bool(wrong)


def test_INV_RGJ4_a_tidemark_that_would_keep_half_of_a_transfer_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = [(0, 4, record_value("eu.1", 5)), (1, 7, record_value("eu.1", -5))]
    tidemarks: Any = [cast("Any", type("T", (), {"ledger": (3, 9), "point": n})) for n in (1, 2)]

    class Log:
        class log:
            class cleaning:
                holes_below = 0

    region: Any = type("R", (), {"partition": lambda *_: Log})()
    monkeypatch.setattr(cut_judge, "tidemarks_of", lambda _region: iter(tidemarks))
    kept = [(tidemarks[0], whole), (tidemarks[1], whole[:1])]
    monkeypatch.setattr(cut_judge, "kept_at_each", lambda *_: iter(kept))
    assert list(cut_judge.torn_at_tidemarks(region, "accounts")) == [
        "a takeover at tidemark 2 would tear ['eu.1']"
    ]
    Log.log.cleaning.holes_below = 4
    assert not list(cut_judge.torn_at_tidemarks(region, "accounts")), "the cleaner was there"
