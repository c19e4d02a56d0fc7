"""The judge of consumer groups, of both protocols: who owned what when, what was committed, and what was processed.

In one generation (classic) or member epoch (KIP-848) a partition has one owner, but for what a word covers: where a
group is lost, one of its name counts from 1 again, with other members. Whoever has lost a partition to another
member commits it no more: its commit is refused, but for what a word covers (a region that could not have heard of its
successor). A committed offset does not go back, but for what a word covers (T26). At the end each record below the
committed offset was processed; exactly once where the offset was in the transaction of the output. What was made of a
record stays where a word has cost the record.

A commit that was not answered may have been late: in one life of a member it counts when it comes, also behind a newer one that
went by another connection (Kafka has no order between connections; transactions have, by ADR 9).

Times are those of the clients: an owner has a partition from when it was told until it said that it gave it back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.judges.excuse import Excuse
from chaos.story import Place, Sighting

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Tenure:
    """One member's ownership of a partition; `region`: who told it."""

    member: str
    partition: int
    epoch: int
    from_s: float
    to_s: float = NEVER
    region: str = ""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit that was accepted: sent at `sent_s`, known at `acked_s`; `NEVER`: it was not answered."""

    member: str
    partition: int
    offset: int
    sent_s: float
    acked_s: float
    region: str


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """A committed offset as a member was told it."""

    partition: int
    offset: int
    asked_s: float
    at_s: float
    region: str


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """One group of one run.

    `processed`: what members were shown. `log`: what the topic has at the end, in one region, as (partition, offset,
    value); `committed`: region -> the offset of each partition. `output`: partition -> values of what transactions wrote
    for each record, None where the group has none.
    """

    topic: str
    tenures: Sequence[Tenure]
    commits: Sequence[GroupCommit]
    seen: Sequence[OffsetSeen]
    processed: Sequence[Sighting]
    log: Sequence[tuple[int, int, str]]
    committed: Mapping[str, Sequence[int]]
    output: Mapping[int, Sequence[str]] | None = None
    unanswered: Sequence[GroupCommit] = ()


def judge_group(run: GroupHistory, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    return [
        *_owners(run, excuse),
        *_fenced(run, excuse),
        *_went_back(run, excuse),
        *_processed(run),
        *_once(run, excuse),
    ]


def _said(run: GroupHistory, commit: GroupCommit) -> Sighting:
    place = Place(run.topic, commit.partition, commit.offset, f"commit of {commit.member}")
    return Sighting(commit.acked_s, commit.region, place, False)


def _told(run: GroupHistory, tenure: Tenure) -> Sighting:
    """Return what a member was told: where two regions acted, one of them told it in vain."""
    place = Place(run.topic, tenure.partition, tenure.epoch, f"ownership of {tenure.member}")
    return Sighting(tenure.from_s, tenure.region, place, False)


def _owners(run: GroupHistory, excuse: Excuse) -> Iterator[str]:
    first: dict[tuple[int, int], Tenure] = {}
    for each in sorted(run.tenures, key=lambda tenure: tenure.from_s):
        owner = first.setdefault((each.epoch, each.partition), each)
        if owner.member == each.member:
            continue
        if not excuse(_told(run, owner), []):
            yield f"{run.topic}-{each.partition} belongs to {owner.member} and {each.member} in epoch {each.epoch}"


def _fenced(run: GroupHistory, excuse: Excuse) -> Iterator[str]:
    of_partition: dict[int, list[Tenure]] = defaultdict(list)
    for each in run.tenures:
        of_partition[each.partition].append(each)
    for commit in run.commits:
        own = [
            t
            for t in of_partition[commit.partition]
            if t.member == commit.member and t.from_s <= commit.sent_s
        ]
        since_s = max((t.from_s for t in own), default=-1.0)
        for other in of_partition[commit.partition]:
            succeeded = other.member != commit.member and since_s < other.from_s < commit.sent_s
            if not succeeded or excuse(_told(run, other), []):
                continue
            if not excuse(_said(run, commit), []):
                yield (
                    f"{run.topic}-{commit.partition}: {other.member} owned it from {other.from_s:.2f} s on, and"
                    f" {commit.region} took the commit {commit.offset} of {commit.member} at {commit.sent_s:.2f} s"
                )
                break


def _went_back(run: GroupHistory, excuse: Excuse) -> Iterator[str]:
    last = [
        OffsetSeen(partition, offset, NEVER, NEVER, region)
        for region, offsets in run.committed.items()
        for partition, offset in enumerate(offsets)
    ]
    of_partition: dict[int, list[GroupCommit]] = defaultdict(list)
    for commit in run.commits:
        of_partition[commit.partition].append(commit)
    for seen in [*run.seen, *last]:
        for commit in of_partition[seen.partition]:
            above = commit.offset > seen.offset and commit.acked_s < seen.asked_s
            place = Place(run.topic, seen.partition, seen.offset, "offset told")
            if above and excuse(Sighting(seen.at_s, seen.region, place, False), []):
                continue  # by a region that acted in vain
            if above and not _came_late(run, commit, seen) and not excuse(_said(run, commit), []):
                when = "at the end" if seen.at_s == NEVER else f"at {seen.at_s:.2f} s"
                yield (
                    f"{run.topic}-{seen.partition}: the committed offset at {seen.region} is {seen.offset} {when};"
                    f" {commit.region} took {commit.offset} of {commit.member} at {commit.acked_s:.2f} s"
                )
                break
    for (one, ours), (other, theirs) in pairwise(run.committed.items()):
        if list(ours) != list(theirs):
            yield f"{run.topic}: committed are {list(ours)} at {one}, {list(theirs)} at {other}"


def _came_late(run: GroupHistory, commit: GroupCommit, seen: OffsetSeen) -> bool:
    """Return whether what was seen may be an older commit of the same life of a member, which nobody answered."""
    return any(
        (late.member, late.partition, late.offset) == (commit.member, seen.partition, seen.offset)
        and late.sent_s < commit.sent_s
        for late in run.unanswered
    )


def _committed(run: GroupHistory) -> Sequence[int]:
    return next(iter(run.committed.values()), ())


def _processed(run: GroupHistory) -> Iterator[str]:
    processed = {_record(each) for each in run.processed}
    for partition, committed in enumerate(_committed(run)):
        for record in run.log:
            if record[0] == partition and record[1] < committed and record not in processed:
                yield f"{record} is below the committed offset {committed}, and no member was given it"


def _record(sighting: Sighting) -> tuple[int, int, str]:
    place = sighting.place
    return place.partition, place.offset, place.value


def _once(run: GroupHistory, excuse: Excuse) -> Iterator[str]:
    if run.output is None:
        return
    gone = _excused(run, excuse)
    for partition, committed in enumerate(_committed(run)):
        taken = Counter(
            value for at, offset, value in run.log if at == partition and offset < committed
        )
        made = Counter(run.output.get(partition, ()))
        beyond = made - taken - gone[partition]
        if beyond or taken - made:
            yield (
                f"{run.topic}-{partition}, committed offset {committed}: the output lacks {dict(taken - made)}, and has"
                f" too much {dict(beyond)}"
            )


def _excused(run: GroupHistory, excuse: Excuse) -> Mapping[int, Counter[str]]:
    """Return the values, by partition, of what members were shown and what a word has cost since: once for each place."""
    shown: dict[Place, list[Sighting]] = defaultdict(list)
    for each in run.processed:
        shown[each.place].append(each)
    there = set(run.log)
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for place, sightings in shown.items():
        if _record(sightings[0]) in there:
            continue
        if all(excuse(each, sightings) for each in sightings):
            found[place.partition][place.value] += 1
    return found
