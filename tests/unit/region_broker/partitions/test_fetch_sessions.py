"""Fetch sessions within their bounds: who gives way to whom (KIP-227, Kafka FetchSessionCache.tryEvict)."""

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from idempotency.identity import NO_LEADER_EPOCH
from region_broker.partitions import fetch_sessions
from region_broker.partitions.fetch_sessions import (
    FetchSession,
    FetchSessions,
    SessionError,
    SessionRequest,
    Told,
    Wanted,
    next_epoch,
)
from tests.fixtures.node_logs import fixture

STALE_MS = 120_000


class SeededChance:
    def __init__(self) -> None:
        self._source = random.Random(7)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def randbits(self, bit_count: int) -> int:
        return self._source.getrandbits(bit_count)

    def uuid(self) -> UUID:
        return UUID(int=self._source.getrandbits(128), version=4)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> FetchSessions:
    monkeypatch.setattr(fetch_sessions, "FETCH_SESSIONS_MAX", 2)
    monkeypatch.setattr(fetch_sessions, "FETCH_SESSION_PARTITIONS_MAX", 10)
    monkeypatch.setattr(fetch_sessions, "FETCH_PARTITION_COUNT_MAX", 8)
    return FetchSessions(SeededChance())


def wants(count: int, first: int = 0) -> list[Wanted]:
    return [Wanted("t", index, NO_LEADER_EPOCH, 0, 100) for index in range(first, first + count)]


def opened(sessions: FetchSessions, count: int, now_ms: int) -> int:
    request = SessionRequest(0, 0, by_id=False, wanted=wants(count))
    assert sessions.enter(request, now_ms) is None
    return sessions.begin(request, now_ms)


def used(
    sessions: FetchSessions, session_id: int, epoch: int, now_ms: int, more: Sequence[Wanted] = ()
) -> FetchSession | SessionError | None:
    return sessions.enter(SessionRequest(session_id, epoch, by_id=False, wanted=more), now_ms)


def test_C40_young_and_used_sessions_stay(sessions: FetchSessions) -> None:
    first, second = opened(sessions, 1, 0), opened(sessions, 1, 0)
    assert 0 not in (first, second)
    assert opened(sessions, 5, STALE_MS) == 0
    assert (len(sessions), sessions.partition_count) == (2, 2)


# Holds INV-FE4.
def test_C40_stale_session_gives_way_first(sessions: FetchSessions) -> None:
    first, second = opened(sessions, 1, 0), opened(sessions, 1, 0)
    assert isinstance(used(sessions, first, 1, STALE_MS), FetchSession)
    assert opened(sessions, 1, STALE_MS + 1) != 0
    assert used(sessions, second, 1, STALE_MS + 1) is SessionError.NOT_FOUND
    assert isinstance(used(sessions, first, 2, STALE_MS + 1), FetchSession)
    assert sessions.evicted_count == 1


def test_C40_larger_session_takes_the_place_of_a_smaller_old_one_in_use(
    sessions: FetchSessions,
) -> None:
    first, second = opened(sessions, 3, 0), opened(sessions, 2, 0)
    late = STALE_MS + 1
    assert isinstance(used(sessions, first, 1, late), FetchSession)
    assert isinstance(used(sessions, second, 1, late), FetchSession)
    assert opened(sessions, 2, late) == 0, "as large is not larger"
    assert opened(sessions, 3, late) != 0
    assert used(sessions, second, 2, late) is SessionError.NOT_FOUND


# Holds INV-FE4.
def test_C40_partitions_of_all_sessions_are_bounded(sessions: FetchSessions) -> None:
    first = opened(sessions, 6, 0)
    assert opened(sessions, 5, 0) == 0
    second = opened(sessions, 4, 0)
    assert sessions.partition_count == 10
    grown = used(sessions, first, 1, 1, wants(1, first=6))
    assert isinstance(grown, FetchSession), "served once more, then it begins anew"
    assert used(sessions, first, 2, 1) is SessionError.NOT_FOUND
    assert used(sessions, second, 1, 1, wants(5, first=4)) is SessionError.TOO_LARGE
    assert (len(sessions), sessions.partition_count) == (0, 0)


# Holds INV-FE5.
def test_C40_partition_with_data_goes_behind_the_others(sessions: FetchSessions) -> None:
    session_id = opened(sessions, 3, 0)
    session = used(sessions, session_id, 1, 0)
    assert isinstance(session, FetchSession)
    first = next(iter(session.dirty.values()))
    assert session.must_tell(first, Told(5, 5, 0, has_data=True, failed=False))
    assert [item.index for item in session.dirty.values()] == [1, 2, 0]
    second = next(iter(session.dirty.values()))
    assert session.must_tell(second, Told(-1, -1, -1, has_data=False, failed=True))
    assert [item.index for item in session.dirty.values()] == [2, 0, 1]
    assert not session.must_tell(first, Told(5, 5, 0, has_data=False, failed=False))
    assert session.must_tell(first, Told(5, 5, 1, has_data=False, failed=False))


def test_C40_epochs_go_round_to_one() -> None:
    assert [next_epoch(1), next_epoch(2**31 - 1)] == [2, 1]


def test_INV_FE6_a_late_answer_quietens_nothing_that_was_forgotten_and_added_anew(
    sessions: FetchSessions,
) -> None:
    session = used(sessions, opened(sessions, 1, 0), 1, 0)
    assert isinstance(session, FetchSession)
    (before,) = session.wanted.values()
    session.step([], [before.key])
    session.step(wants(1), [])
    session.note_quiet(before, fixture().partition)
    assert session.dirty == session.wanted
    assert len(session.dirty) == 1


def test_INV_FE8_a_session_is_not_there_for_others_and_they_do_not_end_it(
    sessions: FetchSessions,
) -> None:
    """Mallory tries the numbers that there are: she learns nothing of alice's session, and cannot be in its way."""
    first = SessionRequest(0, 0, by_id=False, wanted=wants(1), owner="User:alice")
    assert sessions.enter(first, 0) is None
    found = sessions.begin(first, 0)
    for epoch in (1, 7, 0, -1):
        for by_id in (False, True):
            asked = SessionRequest(found, epoch, by_id, wants(1, first=3), owner="User:mallory")
            answered = sessions.enter(asked, 0)
            assert answered is (None if asked.is_full else SessionError.NOT_FOUND)
    theirs = SessionRequest(found, 1, by_id=False, wanted=(), owner="User:alice")
    session = sessions.enter(theirs, 0)
    assert isinstance(session, FetchSession), "it goes on"
    assert [*session.wanted] == [("t", 0)]
    assert sessions.enter(SessionRequest(found, -1, False, (), owner="User:alice"), 0) is None
    assert len(sessions) == 0
