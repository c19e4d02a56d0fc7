"""What the failover lost, seen from three sides that must agree: statement, quarantine, and what is read back.

Each commit decision in the ledger tail of the region that returned is one attempt that was asked to commit and is not
there, in the order of its worker and with the partitions of its row. Each acknowledged attempt that is not there is one
of those decisions. Of the decisions, those that had arrived (below `copied_end` of the ledger shard) are exactly those
that the statement named; the others had not left the old region.

So: lost = named beforehand + not arrived, each by its id, in both directions. An attempt without an answer may
belong to a decision or to none: only the old region knew.
Not here: reading anything (`stage`, `audit`), what else must hold (`audit`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from idempotency.identity import LeaderEpoch
from region_broker.workbench.dataset import Transfer
from region_broker.workbench.workload import (
    ACCOUNTS_TOPIC,
    Ack,
    partition_of,
    transactional_id_of,
)

_LEDGER: Final = "__transaction_state"


class Decision(NamedTuple):
    """Where a commit was decided; a loss statement and a quarantined ledger tail name it alike."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"ledger shard {self.shard}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Lost:
    """One transaction that the failover cut off. `named`: by the statement, before it acted."""

    row_id: str
    attempt: str
    decision: Decision
    named: bool
    answered: bool

    def __str__(self) -> str:
        """Return it as people read it."""
        when = "named beforehand" if self.named else "not arrived, listed after the return"
        answer = "" if self.answered else ", never answered"
        return f"row {self.row_id} (attempt {self.attempt}{answer}): {when}; {self.decision}"


@dataclass(slots=True)
class Comparison:
    """What was lost, and every difference between the three sides; none: they are equal."""

    lost: list[Lost] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def named_count(self) -> int:
        """Return how many the statement named."""
        return sum(lost.named for lost in self.lost)

    @property
    def not_arrived_count(self) -> int:
        """Return how many had not left the old region."""
        return len(self.lost) - self.named_count


@dataclass(frozen=True, slots=True)
class Asked:
    """The commits that the workers asked for: answered, or not."""

    acks: Sequence[Ack]
    unknown: Sequence[Ack]


def compare(
    statement: Mapping[str, Any],
    losses: Sequence[Mapping[str, Any]],
    asked: Asked,
    there: Iterable[str],
    transfers: Iterable[Transfer],
) -> Comparison:
    """Compare the statement made before the takeover, the losses that the returned region lists, and `there`.

    `there` are the attempts that were read back.
    """
    result = Comparison()
    tail = _tail(statement, losses, result)
    _compare_with_statement(statement, tail, result)
    arrived_to = _copied_ends(statement)
    rows = {transfer.row_id: _partitions(transfer) for transfer in transfers}
    gone = _gone(asked, set(there))
    decided: dict[str, list[tuple[Decision, frozenset[str]]]] = defaultdict(list)
    for decision, found in sorted(tail.items()):
        accounts = frozenset(
            name for name in found["partitions"] if name.startswith(f"{ACCOUNTS_TOPIC}-")
        )
        decided[found["transactional_id"]].append((decision, accounts))
    answered = {ack.attempt for ack in asked.acks}
    for name in sorted({*decided, *gone}):
        pairs = _match(
            decided[name], gone[name], lambda ack: ack.attempt in answered, lambda ack: rows[ack.row_id]
        )  # fmt: skip
        if pairs is None:
            result.differences.append(
                f"{name}: {len(decided[name])} commits are in the returned region's tail; not there are"
                f" {', '.join(ack.attempt for ack in gone[name]) or 'none'}"
            )
            continue
        result.lost += [
            Lost(
                row_id=ack.row_id,
                attempt=ack.attempt,
                decision=decision,
                named=decision.offset < arrived_to.get(decision.shard, 0),
                answered=ack.attempt in answered,
            )
            for ack, decision in pairs
        ]
    return result


def _tail(
    statement: Mapping[str, Any], losses: Sequence[Mapping[str, Any]], result: Comparison
) -> dict[Decision, Mapping[str, Any]]:
    """Return the commit decisions that the old region's quarantine holds for this takeover."""
    tail: dict[Decision, Mapping[str, Any]] = {}
    for found in losses:
        whose = f"{found['region']}'s losses for region epoch {found['lineage_epoch']}"
        if found["lineage_epoch"] != statement["region_epoch"]:
            result.differences.append(f"{whose}: another takeover than the demo's")
            continue
        if not found["exact"] or found["transaction_count"] != len(found["transactions"]):
            result.differences.append(f"{whose} are not a complete list")
        if found["statement"] != statement:
            result.differences.append(f"{whose} were checked against another statement")
        result.differences += found["unexplained"]
        tail |= {_decision(lost): lost for lost in found["transactions"]}
    return tail


def _compare_with_statement(
    statement: Mapping[str, Any], tail: Mapping[Decision, object], result: Comparison
) -> None:
    named = {_decision(lost) for lost in statement["transactions"]}
    if len(named) != statement["transaction_count"]:
        result.differences.append("the statement names fewer transactions than it counts")
    arrived_to = _copied_ends(statement)
    arrived = {each for each in tail if each.offset < arrived_to.get(each.shard, 0)}
    result.differences += [
        f"named beforehand, but not in the returned region's tail: {each}"
        for each in sorted(named - tail.keys())
    ]
    result.differences += [
        f"lost, had arrived, and was not named: {each}" for each in sorted(arrived - named)
    ]
    result.differences += [
        f"named, though it had not arrived: {each}"
        for each in sorted((named & tail.keys()) - arrived)
    ]


def _copied_ends(statement: Mapping[str, Any]) -> dict[int, int]:
    return {
        bound["partition"]: bound["copied_end"]
        for bound in statement["bounds"]
        if bound["topic"] == _LEDGER
    }


def _decision(lost: Mapping[str, Any]) -> Decision:
    found = lost["decision"]
    return Decision(found["shard"], found["leader_epoch"], found["offset"])


def _partitions(transfer: Transfer) -> frozenset[str]:
    return frozenset(
        f"{ACCOUNTS_TOPIC}-{partition_of(account)}"
        for account in (transfer.source, transfer.target)
    )


def _gone(asked: Asked, there: set[str]) -> dict[str, list[Ack]]:
    """Return what is not there by transactional id, in the order in which each worker tried."""
    gone: dict[str, list[Ack]] = defaultdict(list)
    for ack in {ack.attempt: ack for ack in (*asked.unknown, *asked.acks)}.values():
        if ack.attempt not in there:
            gone[transactional_id_of(ack.attempt)].append(ack)
    for acks in gone.values():
        acks.sort(key=lambda ack: [int(part) for part in ack.attempt.split(".")])
    return gone


def _match(
    decisions: Sequence[tuple[Decision, frozenset[str]]], gone: Sequence[Ack],
    must_be_decided: Callable[[Ack], bool], partitions: Callable[[Ack], frozenset[str]],
) -> list[tuple[Ack, Decision]] | None:  # fmt: skip
    """Return one attempt for each decision, both in order; None where there is no such pairing.

    Every answered attempt has a decision; one without an answer has one or none.
    """
    ways: dict[int, list[tuple[Ack, Decision]]] = {0: []}  # by how many decisions are paired
    for ack in gone:
        longer: dict[int, list[tuple[Ack, Decision]]] = {}
        for count, pairs in ways.items():
            if count < len(decisions) and decisions[count][1] == partitions(ack):
                longer[count + 1] = [*pairs, (ack, decisions[count][0])]
            if not must_be_decided(ack):
                longer.setdefault(count, pairs)
        ways = longer
    return ways.get(len(decisions))
