"""What `tidemark region losses` prints: which cut, how exact, and where a list stops."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner

from geo_replicator.counted_losses import Quarantined, count_losses
from geo_replicator.lineage import EMPTY_CUT, LogKey
from geo_replicator.loss import Takeover, make_statement
from geo_replicator.quarantine import CutCause
from geo_replicator.tail import Tail
from idempotency.identity import RegionEpoch
from region_broker.cli import region as commands
from region_broker.cli.region import _print_losses
from region_broker.cli.region_client import Cluster
from region_broker.workbench import leading_node
from tests.fixtures.kernel_batches import data
from tests.fixtures.tails import TailBatch, tail_of


def tail(*, unreadable: tuple[str, ...] = ()) -> Tail:
    """Return one of four records of two producers."""
    log = LogKey(UUID(int=1), 0)
    batches = [
        TailBatch(log, "orders", data(10 + 2 * n, sequence=0, count=2, producer_id=7 + n))
        for n in range(2)
    ]
    return tail_of(batches, [], unreadable=unreadable)


def printed(capsys: pytest.CaptureFixture[str], found: Quarantined, **changes: Any) -> str:
    losses = msgspec.to_builtins(count_losses(found, None))
    _print_losses({**losses, **changes}, {})
    return capsys.readouterr().out


def test_INV_LO5_a_divergence_is_no_failovers(capsys: pytest.CaptureFixture[str]) -> None:
    cut_off = printed(capsys, Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail()))
    assert "Cut off when region epoch 17 began" in cut_off
    assert "exactly" in cut_off
    diverged = Quarantined(
        "main", RegionEpoch(17), "eu", RegionEpoch(0), 0, tail(), cause=CutCause.DIVERGENCE
    )
    told = printed(capsys, diverged)
    assert "Diverged under region epoch 17, found in region eu" in told
    assert "the statement is not here" not in told


def cut_off_in(region: str, counts: tuple[int, ...], *, exact: bool) -> dict[str, Any]:
    """Return what a region lists of one cut: a batch of so many records of each partition, from offset 10 on."""
    batches = [
        TailBatch(LogKey(UUID(int=1), partition), "orders", data(10, sequence=0, count=count))
        for partition, count in enumerate(counts)
    ]
    found = Quarantined(
        "main", RegionEpoch(33), region, RegionEpoch(25), 8, tail_of(batches, []), exact=exact
    )
    listed: dict[str, Any] = msgspec.to_builtins(count_losses(found, None))
    return listed


@pytest.mark.parametrize(
    ("held", "told"),
    [((3, 3), False), ((3, 2), False), ((3, 4), True), ((3, 3, 1), True)],
    ids=["as much", "less", "more of one log", "another log"],
)
def test_what_another_mirror_alone_had_beyond_a_cut_is_listed_too(
    held: tuple[int, ...], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {"ap": cut_off_in("ap", (3, 3), exact=True), "eu": cut_off_in("eu", held, exact=False)}

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {name: name for name in of}
        return {name: {} for name in of}

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", lambda name, *_: {"losses": [of[name]]})
    printed = CliRunner().invoke(commands.region, ["losses"]).output
    assert "began, found in region ap" in printed
    assert ("began, found in region eu" in printed) is told
    assert ("that of region ap is listed by itself" in printed) is told


def test_a_damaged_tail_is_named_and_nothing_counts_as_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Quarantined(
        "main",
        RegionEpoch(17),
        "eu",
        RegionEpoch(8),
        5,
        tail(unreadable=("orders-1 from 5 to 9: changed",)),
    )
    told = printed(capsys, found)
    assert "not readable, and not counted whole: orders-1 from 5 to 9" in told
    assert "exactly" not in told


def test_a_list_that_stops_says_how_many_more_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail())
    assert "more" not in printed(capsys, found)
    assert "... and 2 more records that are not listed" in printed(
        capsys, found, records=msgspec.to_builtins(count_losses(found, None).records[:1])
    )


@pytest.mark.parametrize(
    ("views", "counted"),
    [
        ({}, "so far: region us is not back"),
        ({"us": {"phase": "returning", "region_epoch": 8}}, "so far: region us is not back"),
        ({"us": {"phase": "acting", "region_epoch": 8}}, "so far: region us is not back"),
        (
            {"us": {"phase": "mirroring", "region_epoch": 17}},
            "finally: region us is back, and holds nothing more of it",
        ),
    ],
    ids=["away", "on its way", "it acts still, and knows of nothing", "back, with an empty folder"],
)
def test_a_loss_is_final_when_who_had_the_rest_is_back_without_it(
    capsys: pytest.CaptureFixture[str], views: Mapping[str, Any], counted: str
) -> None:
    takeover = Takeover("main", "us", "eu", RegionEpoch(17), planned=False, last_heard_ms=0)
    statement = make_statement(takeover, EMPTY_CUT, [], tail(), now_wall_ms=1)
    found = Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail(), exact=False)
    _print_losses(msgspec.to_builtins(count_losses(found, statement)), views)
    assert counted in capsys.readouterr().out
