"""Epochs, promises, and whether a region may act when it starts."""

from dataclasses import replace

import pytest

from geo_replicator.directory import (
    NO_PROMISE,
    Promise,
    PromiseVerdict,
    RegionReport,
    StartVerdict,
    judge_promise,
    judge_start,
    next_region_epoch,
)
from idempotency.identity import RegionEpoch


# Holds INV-DY1.
def test_the_next_epoch_is_above_all_known_and_carries_the_ordinal() -> None:
    assert next_region_epoch([], 0) == 8
    assert next_region_epoch([8], 1) == 17
    assert next_region_epoch([8, 17, 9], 0) == 24


# Holds INV-FA5.
@pytest.mark.parametrize(
    ("given", "epoch", "asked", "verdict"),
    [
        (NO_PROMISE, 8, Promise(RegionEpoch(17), "us"), PromiseVerdict.GRANTED),
        (
            Promise(RegionEpoch(17), "us"),
            8,
            Promise(RegionEpoch(17), "us"),
            PromiseVerdict.REPEATED,
        ),
        (Promise(RegionEpoch(17), "us"), 8, Promise(RegionEpoch(18), "ap"), PromiseVerdict.GRANTED),
        (
            Promise(RegionEpoch(18), "ap"),
            8,
            Promise(RegionEpoch(17), "us"),
            PromiseVerdict.REFUSED_HIGHER_PROMISE,
        ),
        (NO_PROMISE, 24, Promise(RegionEpoch(17), "us"), PromiseVerdict.REFUSED_HIGHER_EPOCH),
        (NO_PROMISE, 17, Promise(RegionEpoch(17), "us"), PromiseVerdict.REFUSED_HIGHER_EPOCH),
    ],
)
def test_promises(given: Promise, epoch: int, asked: Promise, verdict: PromiseVerdict) -> None:
    assert judge_promise(given, RegionEpoch(epoch), asked) is verdict


def test_a_region_that_nobody_answers_may_act() -> None:
    assert judge_start(RegionEpoch(8), []).verdict is StartVerdict.ACT


def test_a_region_follows_a_higher_epoch() -> None:
    decision = judge_start(RegionEpoch(8), [RegionReport("us", RegionEpoch(17), acting=True)])
    assert (decision.verdict, decision.leader) == (StartVerdict.FOLLOW, "us")


def test_a_region_waits_for_a_candidate_that_has_a_promise() -> None:
    report = RegionReport(
        "us", RegionEpoch(8), acting=False, promise=Promise(RegionEpoch(17), "us")
    )
    decision = judge_start(RegionEpoch(8), [report])
    assert (decision.verdict, decision.leader) == (StartVerdict.WAIT, "us")
    assert "us" in decision.reason
    assert "17" in decision.reason


def test_INV_DY2_one_epoch_is_promised_to_one_candidate() -> None:
    given = Promise(RegionEpoch(17), "us")
    assert (
        judge_promise(given, RegionEpoch(8), Promise(RegionEpoch(17), "ap"))
        is PromiseVerdict.REFUSED_HIGHER_PROMISE
    )


def test_INV_DY3_a_region_does_not_wait_for_a_promise_of_its_own_epoch() -> None:
    report = RegionReport(
        "us", RegionEpoch(8), acting=False, promise=Promise(RegionEpoch(17), "eu")
    )
    assert judge_start(RegionEpoch(17), [report]).verdict is StartVerdict.ACT


def test_T24_a_promise_that_its_candidate_gave_up_keeps_nobody_waiting() -> None:
    promised = Promise(RegionEpoch(17), "ap")
    reports = [
        RegionReport("us", RegionEpoch(8), acting=False, promise=promised),
        RegionReport("ap", RegionEpoch(8), acting=False, abandoned_epoch=RegionEpoch(16)),
    ]
    assert judge_start(RegionEpoch(8), reports).verdict is StartVerdict.WAIT
    reports[1] = replace(reports[1], abandoned_epoch=RegionEpoch(17))
    assert judge_start(RegionEpoch(8), reports).verdict is StartVerdict.ACT
    higher = RegionReport(
        "us", RegionEpoch(8), acting=False, promise=Promise(RegionEpoch(24), "us")
    )
    assert judge_start(RegionEpoch(8), [higher, reports[1]]).verdict is StartVerdict.WAIT
