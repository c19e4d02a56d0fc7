"""What a follower says beside a fetch, within it, and ahead of it (INV-RPF6, INV-RPF9); what ends a session waits for the comparison of all logs (INV-RFN9)."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch, LogKey
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX
from region_broker.region.cluster import replica_line
from region_broker.region.cluster.replica_line import ReplicaLine
from region_broker.region.cluster.replica_messages import (
    CheckedReplicaLogs,
    DurableReport,
    ReplicaFetch,
    ReplicaFetched,
    names_of,
    places_of,
)
from region_broker.replication.effects import CheckEpochs, SendFetch, SendReport
from tests.fixtures.cluster_images import member

X, Y = (LogKey(UUID(int=number), 0) for number in (1, 2))


class Client:
    """Keeps what is sent, in order."""

    ended: str | None = None

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.answers: list[asyncio.Future[Any]] = []

    def notify(self, message: object) -> None:
        self.sent.append(message)

    def begin(self, message: object, _answer: type) -> asyncio.Future[Any]:
        self.sent.append(message)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Driver:
    serves_readers = False
    taken_bytes_per_s = CATCH_UP_BYTES_PER_S_MAX

    def __init__(self, *, has_room: bool = True) -> None:
        self.has_room = has_room
        self.told: list[str] = []

    async def checked(self, *_: object) -> None:
        self.told.append("checked")

    def fetched(self, *_: object, **__: object) -> None:
        self.told.append("fetched")


def line(driver: Driver | None = None) -> tuple[ReplicaLine, Client]:
    driver = driver or Driver()
    made = ReplicaLine(1, member(1), LeaderEpoch(5), cast("Any", None), cast("Any", driver))
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


@pytest.mark.parametrize("has_room", [True, False])
async def test_INV_RFN9_without_room_an_answer_waits_until_each_log_was_compared(
    monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    monkeypatch.setattr(replica_line, "LOGS_CHECKED_AT_ONCE", 1)
    driver = Driver(has_room=has_room)
    made, client = line(driver)
    made.check(CheckEpochs(1, {X: LeaderEpoch(4), Y: LeaderEpoch(4)}))
    made.fetch(SendFetch(1, {X: 0}, (), {}, {}, None))
    first, second, fetch = client.answers
    async with asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(each) for each in (made._take_checks(), made._take_fetches())]
        checked = CheckedReplicaLogs(logs=()), memoryview(b"")
        first.set_result(checked)
        fetch.set_result((ReplicaFetched(parts=(), acts=True, takes_writes=True), memoryview(b"")))
        await turns()
        assert driver.told == (["checked", "fetched"] if has_room else ["checked"])
        second.set_result(checked)
        await turns()
        assert driver.told.count("checked") == 2
        assert driver.told.index("fetched") == (1 if has_room else 2)
        for task in reading:
            task.cancel()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
