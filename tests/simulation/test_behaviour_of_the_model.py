"""Runs of the simulator are behaviours of the model, and a run in which one rule was broken is not."""

import ast
from collections.abc import Callable
from functools import cache

import pytest

from chaos.shuffle.plan import Kind
from tests.model.behaviour import Behaviour, Refused
from tests.simulation.swarm.life import play
from tests.simulation.swarm.plan import Choice

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
NAMES = ("eu", "us", "ap")
FOLDERS = frozenset(kind.value for kind in (Kind.WIPE, Kind.RESTORE, Kind.SWAP, Kind.HALF))
SEED, MINUTES = 3, 0.2
LEAST_MOVES = 100
EPOCH_OF_AP = 18
Line = tuple[object, ...]


@cache
def lines_of(seed: int) -> tuple[str, ...]:
    """Return the events of a life of two regions, in which folders stay what they are."""
    lines: list[str] = []
    outcome = play(
        seed, minutes=MINUTES, regions=2, write=lines.append, choice=Choice(without=FOLDERS)
    )
    assert not outcome.violations
    return tuple(lines)


def events_of(seed: int) -> list[tuple[object, ...]]:
    """Return what the model has a word for."""
    lines = (line.partition(" ")[2] for line in lines_of(seed))
    return [ast.literal_eval(line)[1:] for line in lines if line.startswith("('model'")]


@pytest.mark.usefixtures("silence")
def test_T1_T4_T11_T16_T17_T24_a_life_is_a_behaviour_of_the_model() -> None:
    behaviour = Behaviour(NAMES)
    behaviour.follow(lines_of(SEED))
    assert behaviour.moves > LEAST_MOVES
    assert behaviour.tidemarks
    assert behaviour.entries, "a region took over"


def first(events: list[Line], kind: str) -> int:
    return next(at for at, event in enumerate(events) if event[0] == kind)


def a_shard_did_not_enter(events: list[Line]) -> None:
    del events[first(events, "entered")]


def a_round_is_driven_again(events: list[Line]) -> None:
    at = first(events, "enter")
    events.insert(at + 1, events[at])


def what_was_not_closed_is_published(events: list[Line]) -> None:
    del events[first(events, "close")]


def a_number_is_left_out(events: list[Line]) -> None:
    at = [at for at, event in enumerate(events) if event[0] == "tidemark"][1]
    kind, epoch, number, *rest = events[at]
    assert isinstance(number, int)
    events[at] = (kind, epoch, number + 1, *rest)


def it_is_reached_before_it_is_published(events: list[Line]) -> None:
    events.insert(first(events, "tidemark"), events.pop(first(events, "reached")))


def who_promised_goes_on_reaching(events: list[Line]) -> None:
    at = first(events, "reached")
    region = events[at][1]
    taken = '{"type":"TakeoverBegun","region_epoch":%d,"old_region":"eu","operation_id":"","planned":false,"forced":true}'
    given = '{"type":"PromiseGiven","region_epoch":%d,"taker":"%s"}'
    born = '{"type":"Born","region":"ap","acting":false,"region_epoch":8}'
    events[at:at] = [
        ("journal", "ap", born),
        ("journal", "ap", taken % EPOCH_OF_AP),
        ("journal", region, given % (EPOCH_OF_AP, "ap")),
    ]


def one_epoch_is_promised_to_who_did_not_ask(events: list[Line]) -> None:
    given = '{"type":"PromiseGiven","region_epoch":18,"taker":"ap"}'
    events.insert(first(events, "enter"), ("journal", "us", given))


def it_acts_without_a_cut(events: list[Line]) -> None:
    adopted = '{"type":"Adopted","region_epoch":17}'
    events.insert(first(events, "enter"), ("journal", "us", adopted))


def it_is_shown_before_it_is_reached(events: list[Line]) -> None:
    at = first(events, "shown")
    kind, region, logs = events[at]
    assert isinstance(logs, list)
    events[at] = (kind, region, [(key, cut + 1, end) for key, cut, end in logs])


def readers_see_what_is_beyond_the_cut(events: list[Line]) -> None:
    at = first(events, "shown")
    kind, region, logs = events[at]
    assert isinstance(logs, list)
    events[at] = (kind, region, [(key, cut, cut + 1) for key, cut, _ in logs])


def a_position_goes_down(events: list[Line]) -> None:
    tidemarks = [at for at, event in enumerate(events) if event[0] == "tidemark"]
    named = [at for at in tidemarks if events[at][6]]
    *rest, _full, logs = events[named[-1]]
    assert isinstance(logs, list)
    events[named[-1]] = (*rest, False, [(key, -1) for key, _ in logs])


PLANTED: dict[str, Callable[[list[Line]], None]] = {
    "T4: a round is closed when all": a_shard_did_not_enter,
    "T1: a round is driven once": a_round_is_driven_again,
    "T4: what is published was closed": what_was_not_closed_is_published,
    "T10: k is dense": a_number_is_left_out,
    "T16: what is reached was published": it_is_reached_before_it_is_published,
    "T11: D never goes down": a_position_goes_down,
    "T16: what is shown was reached": it_is_shown_before_it_is_reached,
    "T17: readers end at D": readers_see_what_is_beyond_the_cut,
    "T24: who promised reaches nothing": who_promised_goes_on_reaching,
    "T24: who is promised has asked": one_epoch_is_promised_to_who_did_not_ask,
    "Adopted in phase mirroring": it_acts_without_a_cut,
}


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("rule", PLANTED)
def test_a_life_in_which_a_rule_was_broken_is_none(rule: str) -> None:
    events = events_of(SEED)
    PLANTED[rule](events)
    with pytest.raises(Refused, match=rule):
        Behaviour(NAMES).take_all(events)
