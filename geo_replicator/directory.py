"""Region epochs and promises: who may act, as each region alone can judge it (T19, T24 two regions).

INV-DY1  region_epoch = n << 3 | region ordinal: two regions never write under the same one (T19)
INV-DY2  a promise is never weakened: only a higher epoch, or the same one by the same candidate, is promised
INV-DY3  a region that starts acts only if no region it could ask knows a higher epoch or a later promise

Two regions have no majority: the operator's word stands in for an answer that cannot be had. A witness or a
third region makes this the state machine of a Raft group across regions.
Not here: asking (the failover driver), durability (the failover journal).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from geo_replicator.lineage import BEFORE_ALL, Lineage, TidemarkPoint
from idempotency import fencing
from idempotency.identity import RegionEpoch


def next_region_epoch(known: Iterable[int], ordinal: int) -> RegionEpoch:
    """Return an epoch one number above all `known` ones, unique to the region `ordinal` (T19).

    Raises `idempotency.fencing.EpochExhausted`.
    """
    highest = max(known, default=-1)
    region_epoch = fencing.next_region_epoch(highest, ordinal)
    assert region_epoch > highest, f"INV-DY1: {region_epoch} is not above {highest}"
    return region_epoch


@dataclass(frozen=True, slots=True)
class Promise:
    """Nothing of an epoch older than `region_epoch` is acted on, reached or forwarded any more."""

    region_epoch: RegionEpoch
    candidate: str


NO_PROMISE: Final = Promise(RegionEpoch(0), "")


class PromiseVerdict(Enum):
    """What a region answers to a failover candidate."""

    GRANTED = "granted"
    REPEATED = "repeated"
    REFUSED_HIGHER_PROMISE = "refused: a higher region epoch was promised"
    REFUSED_HIGHER_EPOCH = "refused: a region acts under a higher region epoch"


def judge_promise(given: Promise, region_epoch: RegionEpoch, asked: Promise) -> PromiseVerdict:
    """Return whether a region at `region_epoch` that gave `given` may promise `asked` (INV-DY2)."""
    if asked == given:
        return PromiseVerdict.REPEATED
    if asked.region_epoch <= region_epoch:
        return PromiseVerdict.REFUSED_HIGHER_EPOCH
    if asked.region_epoch <= given.region_epoch:
        return PromiseVerdict.REFUSED_HIGHER_PROMISE
    return PromiseVerdict.GRANTED


@dataclass(frozen=True, slots=True)
class RegionReport:
    """What one region says about itself.

    `claim` is the greatest tidemark it published (acting) or reached (mirror). `abandoned_epoch`: it acts under no region
    epoch up to this one that it was promised.
    """

    region: str
    region_epoch: RegionEpoch
    acting: bool
    promise: Promise = NO_PROMISE
    claim: TidemarkPoint = BEFORE_ALL
    lineage: Lineage = field(default_factory=Lineage)
    abandoned_epoch: RegionEpoch = RegionEpoch(0)


class StartVerdict(Enum):
    """What a region that acted before may do when it starts."""

    ACT = "act"
    FOLLOW = "another region acts under a higher region epoch"
    WAIT = "another region was promised a higher region epoch and has not finished taking over"


@dataclass(frozen=True, slots=True)
class StartDecision:
    """The verdict, and why in words."""

    verdict: StartVerdict
    reason: str = ""
    leader: str = ""


def judge_start(region_epoch: RegionEpoch, reports: Sequence[RegionReport]) -> StartDecision:
    """Return what a region that acted under `region_epoch` may do, given the regions that answered.

    Whether a mirror has shown more than it holds is judged by itself (`history`, T33). No report at all means ACT: with two regions an
    unreachable mirror must not keep the primary down, and the operator answers for not having failed over.
    """
    ahead = max(reports, key=lambda report: report.region_epoch, default=None)
    if ahead is not None and ahead.region_epoch > region_epoch:
        reason = f"region {ahead.region} is at region epoch {ahead.region_epoch}, this one at"
        return StartDecision(StartVerdict.FOLLOW, f"{reason} {region_epoch}", ahead.region)
    abandoned = {report.region: report.abandoned_epoch for report in reports}
    promise = max(
        (each.promise for each in reports if not is_abandoned(each.promise, abandoned)),
        key=lambda promise: promise.region_epoch,
        default=NO_PROMISE,
    )
    if promise.region_epoch > region_epoch:
        reason = (
            f"region {promise.candidate} was promised region epoch {promise.region_epoch}; this one goes on by itself, when"
            f" that one acts or gave up. If {promise.candidate} is lost, or has lost its memory of it: tidemark region"
            " failover --to another region"
        )
        return StartDecision(StartVerdict.WAIT, reason, promise.candidate)
    return StartDecision(StartVerdict.ACT)


def is_abandoned(promise: Promise, abandoned: Mapping[str, RegionEpoch]) -> bool:
    """Return whether who was promised an epoch said that it gave it up: it never acts under it (T24)."""
    return abandoned.get(promise.candidate, 0) >= promise.region_epoch
