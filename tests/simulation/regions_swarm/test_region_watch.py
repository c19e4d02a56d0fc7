"""That the watch over regions of several nodes sees logs that go back, and logs that differ."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
    failed: str | None = None
    key: str = "orders-0"
    tp: str = "orders-0"
    data: bytes = b""


def log(high_watermark: int, start: int = 0) -> Log:
    content, cleaning = SimpleNamespace(closed=False), SimpleNamespace(holes_below=0)
    return Log(high_watermark, start, start, SimpleNamespace(content=content, cleaning=cleaning))


def node(*logs: Any) -> Any:
    return SimpleNamespace(
        name="eu-1", node=SimpleNamespace(storage=SimpleNamespace(partitions=logs))
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(watch, "_under", lambda _node: HERE)
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
    monkeypatch.setattr(watch, "leadership_of", lambda _node: SimpleNamespace(leader_epoch=HERE[0]))

    def seen(high_watermark: int) -> None:
        domain = SimpleNamespace(region_epoch=epoch["now"])
        metadata = SimpleNamespace(image=SimpleNamespace(main_domain=domain))
        storage = SimpleNamespace(partitions=(one,), metadata=metadata)
        follower.node = SimpleNamespace(role=role, storage=storage)
        one.high_watermark = high_watermark
        here._look_at_high_watermarks(follower)

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


def test_INV_RGW4_what_is_committed_and_differs_between_nodes_is_seen(found: list[str]) -> None:
    here, one, two = watching(found), log(3), log(4)
    one.data, two.data = b"abc?", b"abcd"
    here._compare(node(one), node(two))
    assert not found
    one.high_watermark = 4
    here._compare(node(one), node(two))
    assert "differs between" in found[0]
