"""What a follower says beside a fetch, within it, and ahead of it (INV-RPF6, INV-RPF9)."""

from typing import Any, cast
from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch, LogKey
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX
from region_broker.region.cluster.replica_line import ReplicaLine
from region_broker.region.cluster.replica_messages import (
    DurableReport,
    ReplicaFetch,
    names_of,
    places_of,
)
from region_broker.replication.effects import SendFetch, SendReport
from tests.fixtures.cluster_images import member

X, Y = (LogKey(UUID(int=number), 0) for number in (1, 2))


class Client:
    """Keeps what is sent, in order."""

    ended: str | None = None

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def notify(self, message: object) -> None:
        self.sent.append(message)

    def begin(self, message: object, _answer: type) -> None:
        self.sent.append(message)


class Driver:
    serves_readers = False
    taken_bytes_per_s = CATCH_UP_BYTES_PER_S_MAX


def line() -> tuple[ReplicaLine, Client]:
    made = ReplicaLine(1, member(1), LeaderEpoch(5), cast("Any", None), cast("Any", Driver()))
    client = Client()
    made._client = cast("Any", client)
    return made, client


LACKING = frozenset({Y})


@pytest.mark.parametrize(("durable", "starts"), [({X: 5}, {}), ({}, {X: 3})])
async def test_INV_RPF6_a_report_goes_ahead_of_a_fetch_that_asks_for_no_new_log(
    durable: dict[LogKey, int], starts: dict[LogKey, int]
) -> None:
    made, client = line()
    made.fetch(SendFetch(1, {}, (), durable, starts, LACKING))
    report, fetch = client.sent
    assert isinstance(report, DurableReport)
    assert isinstance(fetch, ReplicaFetch)
    said = places_of(durable), places_of(starts), names_of(LACKING)
    assert (report.durable_ends, report.log_starts, report.lacking) == said
    assert (fetch.durable_ends, fetch.log_starts, fetch.lacking) == ((), (), None)


async def test_INV_RPF6_with_new_logs_it_goes_within_the_fetch_that_names_them() -> None:
    made, client = line()
    made.fetch(SendFetch(1, {X: 0}, (), {X: 5}, {X: 3}, LACKING))
    (fetch,) = client.sent
    assert isinstance(fetch, ReplicaFetch)
    assert fetch.positions == places_of({X: 0})
    assert (fetch.durable_ends, fetch.log_starts) == (places_of({X: 5}), places_of({X: 3}))
    assert fetch.lacking == names_of(LACKING)


async def test_INV_RPF9_what_does_not_run_is_said_where_nothing_else_is() -> None:
    made, client = line()
    made.fetch(SendFetch(1, {}, (), {}, {}, LACKING))
    made.report(SendReport(1, {}, {}, LACKING))
    fetch, report = client.sent
    assert (type(fetch), type(report)) == (ReplicaFetch, DurableReport)
    assert fetch.lacking == report.lacking == names_of(LACKING)
    made.report(SendReport(1, {X: 1}, {}, None))
    assert client.sent[-1].lacking is None
