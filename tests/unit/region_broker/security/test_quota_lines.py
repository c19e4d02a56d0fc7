"""Those who wait for what their limit owes, without a node: a clock and timers that are moved by hand."""

from collections.abc import Callable
from typing import Final

from region_broker.security.quotas.entities import Limit, QuotaKey
from region_broker.security.quotas.lines import LET_GO_AT_ONCE, Lines, Place

BYTES: Final = Limit(1_000.0, (QuotaKey.PRODUCE, "u", None))
TIME: Final = Limit(1.0, (QuotaKey.REQUEST, "u", None))


class PlayedTimer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.is_off = at_s, call, False

    def cancel(self) -> None:
        self.is_off = True


class Played:
    """Lines whose time passes by `until`, and of which `owed` is what is left, negated."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.owed = {BYTES.sharers: 0.0, TIME.sharers: 0.0}
        self.timers: list[PlayedTimer] = []
        self.limits = {"u": [TIME, BYTES]}
        self.gone: list[str] = []
        self.looks = 0
        self.lines = Lines(self, self.call_later)

    def owes(self, limit: Limit) -> bool:
        return self.left_of(limit) < 0.0

    def left_of(self, limit: Limit) -> float:
        self.looks += 1
        return self.now_s * limit.rate - self.owed[limit.sharers]

    def call_later(self, delay_s: float, call: Callable[[], None]) -> PlayedTimer:
        self.timers.append(PlayedTimer(self.now_s + delay_s, call))
        return self.timers[-1]

    def wait(self, name: str, *, takes: float = 0.0, request_bytes: int = 0) -> Place | None:
        def go() -> None:
            self.gone.append(name)
            self.owed[BYTES.sharers] += takes

        return self.lines.wait(lambda: self.limits["u"], go, request_bytes)

    def until(self, now_s: float) -> None:
        while due := [each for each in self.running if each.at_s <= now_s]:
            first = min(due, key=lambda each: each.at_s)
            self.now_s = max(self.now_s, first.at_s)
            self.timers.remove(first)
            first.call()
        self.now_s = now_s

    @property
    def running(self) -> list[PlayedTimer]:
        return [each for each in self.timers if not each.is_off]


def test_INV_SQL1_who_shares_a_limit_goes_in_order_and_never_while_something_is_owed() -> None:
    played = Played()
    assert played.wait("free") is None, "nothing is owed, and nobody waits"
    played.owed[BYTES.sharers] = 2_000.0
    for name in "abcde":
        assert played.wait(name, takes=1_000.0, request_bytes=1_000) is not None
    played.until(1.9)
    assert played.gone == []
    played.until(2.0)
    assert played.gone == ["a"], "what it takes keeps the others"
    played.until(4.5)
    assert played.gone == ["a", "b", "c"]
    assert played.wait("f") is not None
    played.until(7.0)
    assert "".join(played.gone) == "abcdef"
    assert len(played.lines) == 0
    assert played.running == []


def test_INV_SQL1_whoever_comes_while_others_wait_is_behind_them() -> None:
    played = Played()
    played.owed[BYTES.sharers] = 1_000.0
    assert played.wait("a") is not None
    played.owed[BYTES.sharers] = 0.0
    assert played.wait("b") is not None, "nothing is owed, but another one was first"
    played.until(1.0)
    assert played.gone == ["a", "b"]


def test_INV_SQL1_as_many_go_at_once_as_what_is_left_is_enough_for() -> None:
    played = Played()
    played.owed[BYTES.sharers] = 1_000.0
    for _ in range(10):
        played.wait("bytes", request_bytes=1_000)
    played.now_s = 3.5
    played.timers.pop(0).call()
    assert len(played.gone) == 3, "2,500 are left: the third goes beyond"


def test_INV_SQL1_who_has_two_limits_waits_for_both() -> None:
    played = Played()
    played.owed |= {TIME.sharers: 1.0, BYTES.sharers: 3_000.0}
    assert played.wait("a") is not None
    played.until(2.0)
    assert played.gone == []
    assert len(played.lines) == 1
    played.until(3.0)
    assert played.gone == ["a"]


def test_INV_SQL2_one_timer_runs_however_many_wait() -> None:
    played = Played()
    played.owed[TIME.sharers] = 100.0
    places = [played.wait(str(at)) for at in range(1_000)]
    assert len(played.running) == 1
    played.looks = 0
    played.until(50.0)
    assert played.looks <= 2 * 51, "who waits is not looked at"
    for place in places:
        assert place is not None
        place.cancel()
    assert (len(played.lines), played.running) == (0, [])
    played.until(200.0)
    assert played.gone == []


def test_INV_SQL3_a_limit_that_is_taken_away_lets_all_go() -> None:
    played = Played()
    played.owed[BYTES.sharers] = 600_000.0
    for at in range(LET_GO_AT_ONCE + 1):
        played.wait(str(at), request_bytes=1_000)
    played.limits["u"] = []
    played.until(1.0)
    assert len(played.gone) == LET_GO_AT_ONCE + 1
    assert len(played.lines) == 0


def test_a_place_that_is_given_up_keeps_nobody_back() -> None:
    played = Played()
    played.owed[BYTES.sharers] = 1_000.0
    first, _ = played.wait("a"), played.wait("b")
    assert first is not None
    first.cancel()
    first.cancel()
    played.until(1.0)
    assert played.gone == ["b"]
