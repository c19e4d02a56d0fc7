"""That the watch over regions of several nodes sees logs that go back, and logs that differ."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_replicator.failover import Phase
from tests.simulation.regions_swarm import watch
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.regions_swarm.watch import Watch

HERE = (65_537, 8)


@dataclass(eq=False)
class Log:
    """As much of a partition as the watch looks at."""

    high_watermark: int
    log_start_offset: int
    kept_from: int
    log: Any
    key: str = "orders-0"
    tp: str = "orders-0"
    data: bytes = b""


def log(high_watermark: int, start: int = 0) -> Log:
    content, cleaning = SimpleNamespace(closed=False, failed=None), SimpleNamespace(holes_below=0)
    return Log(high_watermark, start, start, SimpleNamespace(content=content, cleaning=cleaning))


def node(*logs: Any) -> Any:
    storage = SimpleNamespace(partitions=logs, metadata=SimpleNamespace(image=object()))
    return SimpleNamespace(name="eu-1", node=SimpleNamespace(storage=storage))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(watch, "_under", lambda *_: HERE)
    monkeypatch.setattr(watch, "whole", lambda log, start, end: log.data[start:end])
    return []


def watching(found: list[str]) -> Watch:
    return Watch(cast("Stage", SimpleNamespace(blame=found.append)))


def test_INV_RGW3_a_high_watermark_that_goes_back_more_often_than_by_a_cut_is_seen(
    found: list[str],
) -> None:
    here, one = watching(found), log(9)
    for high_watermark in (9, 7, 8):
        one.high_watermark = high_watermark
        here._look_at_high_watermarks(node(one))
    assert not found
    one.high_watermark = 6
    here._look_at_high_watermarks(node(one))
    assert "goes back from 8 to 6" in found[0]


def test_INV_RGW3_a_node_that_follows_is_cut_by_each_takeover_once(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata name the takeover, before the next leader epoch is begun; its role says nothing of it."""
    monkeypatch.undo()
    here, one, epoch = watching(found), log(9), {"now": 17}
    follower = node(one)
    role = SimpleNamespace(region_epoch=0)
    leadership = SimpleNamespace(leader_epoch=HERE[0])

    def seen(high_watermark: int) -> None:
        domain = SimpleNamespace(region_epoch=epoch["now"])
        image = SimpleNamespace(main_domain=domain, leadership=leadership, spread=None)
        metadata = SimpleNamespace(image=image)
        storage = SimpleNamespace(partitions=(one,), metadata=metadata)
        follower.node = SimpleNamespace(role=role, storage=storage)
        one.high_watermark = high_watermark
        here._look_at_high_watermarks(follower)
        here._look_at_high_watermarks(follower)  # by the same image nothing is another one's

    seen(9)
    seen(7)
    epoch["now"] = 24
    seen(7)
    seen(6)
    assert not found
    seen(5)
    assert "goes back from 6 to 5" in found[0]


def test_INV_RGW3_a_log_that_starts_anew_does_not_go_back(found: list[str]) -> None:
    here, one = watching(found), log(9)
    for high_watermark in (9, 7):
        one.high_watermark = high_watermark
        here._look_at_high_watermarks(node(one))
    one.high_watermark, one.log_start_offset = 0, 7
    here._look_at_high_watermarks(node(one))
    assert not found


def test_INV_RGW3_a_log_of_a_data_group_goes_by_the_leader_epoch_of_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    one, row = log(9), SimpleNamespace(leader_epoch=9)
    image = SimpleNamespace(
        main_domain=SimpleNamespace(region_epoch=8), leadership=SimpleNamespace(leader_epoch=7), spread=object(),
        leadership_of=lambda _key: row,
    )  # fmt: skip
    here = cast(
        "Any", SimpleNamespace(node=SimpleNamespace(storage=SimpleNamespace(metadata=SimpleNamespace(image=image))))
    )  # fmt: skip
    assert watch._under(here, cast("Any", one)) == (9, 8)
    assert watch._under(here) == (7, 8)


def test_INV_RGW5_a_mirror_whose_leaders_are_spread_is_seen_and_so_is_one_that_does_not_say_what_it_waits_for(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = SimpleNamespace(spread=object(), spread_wanted=True)
    keeper = SimpleNamespace(waits_for=lambda: "")
    joined = SimpleNamespace(
        storage=SimpleNamespace(metadata=SimpleNamespace(image=image)),
        _replication=SimpleNamespace(spread_keeper=keeper),
    )
    member: Any = SimpleNamespace(name="eu-1", phase=Phase.ACTING, node=joined)
    monkeypatch.setattr(watch, "NodeAmong", SimpleNamespace)
    monkeypatch.setattr(watch, "speaks", lambda _node: True)
    here = watching(found)
    here._look_at_spread(member)
    assert not found
    member.phase = Phase.MIRRORING
    here._look_at_spread(member)
    assert "leaders are spread" in found[0]
    image.spread = None
    here._look_at_spread(member)
    assert "does not say why" in found[1]
    keeper.waits_for = lambda: "the region takes no writes"
    here._look_at_spread(member)
    assert len(found) == 2


def test_INV_RGW6_a_last_stable_offset_that_goes_back_where_it_is_led_is_seen(
    found: list[str],
) -> None:
    here, one = watching(found), log(9)
    groups = SimpleNamespace(is_main=lambda _key: False, leads_under=lambda _key: epoch["now"])
    epoch: dict[str, int | None] = {"now": 5}
    leader = node(one)
    leader.node.role = SimpleNamespace(acting=False, leader_epoch=0)
    leader.node._replication = SimpleNamespace(groups=groups)

    def seen(last_stable_offset: int) -> None:
        cast("Any", one).sight = SimpleNamespace(last_stable_offset=last_stable_offset)
        here._look_at_stable_ends(leader)

    seen(7)
    epoch["now"] = 6
    seen(6)
    epoch["now"] = None
    seen(2)
    assert not found
    epoch["now"] = 6
    seen(5)
    assert "goes back from 6 to 5" in found[0]


def test_INV_RGW4_what_is_committed_and_differs_between_nodes_is_seen(found: list[str]) -> None:
    here, one, two = watching(found), log(3), log(4)
    one.data, two.data = b"abc?", b"abcd"
    here._compare(node(one), node(two))
    assert not found
    one.high_watermark = 4
    here._compare(node(one), node(two))
    assert "differs between" in found[0]
