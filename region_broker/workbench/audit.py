"""The demo's proof: everything is read back through read-committed consumers, and counted anew.

No figure comes from the workload's own counters: what is said of the logs was read from the logs. Torn: a row with one
of its two records · doubled: more than one attempt of a row, or a record twice · missing: a row whose input offset is
committed without records · lost: an attempt that was acknowledged and is not there (another attempt took its place, or
none).
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.dataset import Transfer
from region_broker.workbench.workload import (
    ACCOUNT_PARTITIONS,
    ACCOUNTS_TOPIC,
    Journal,
)

_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.1
_BATCH_MAX: Final = 1000
_LISTED_MAX: Final = 20
_OF_MOVED_LEADER: Final = frozenset(
    {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
     KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the accounts' topic."""

    row_id: str
    account: str
    change: int
    attempt: str
    partition: int
    offset: int


@dataclass(slots=True)
class Findings:
    """What the audit says. Every list is complete; printing shortens."""

    rows_expected: int
    rows_found: int = 0
    torn: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    lost_unknown: int = 0
    sum_over_accounts: int = 0
    accounts: int = 0
    differing_regions: int = 0

    @property
    def broken(self) -> list[str]:
        """Return which invariants do not hold."""
        named = {
            "torn transactions": len(self.torn),
            "doubled rows": len(self.doubled),
            "missing rows": len(self.missing),
            "wrong records": len(self.wrong),
            "sum over accounts": self.sum_over_accounts,
            "records that differ between regions": self.differing_regions,
        }
        return [f"{name}: {value}" for name, value in named.items() if value]


def is_of_moved_leader(error: KafkaError) -> bool:
    """Return whether a broker says that its caller knows an older or newer leader: to be asked again (KIP-320).

    Java's clients ask again by themselves; librdkafka names none of these retriable outside of transactions.
    """
    return error.code() in _OF_MOVED_LEADER


def read_accounts(bootstrap: str) -> list[Entry]:
    """Read the accounts' topic from its beginning to its end, committed records only."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, **kafka_login(), "group.id": "demo-audit", "log_level": 0,
         "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    entries: list[Entry] = []
    try:
        consumer.assign(
            [TopicPartition(ACCOUNTS_TOPIC, number, 0) for number in range(ACCOUNT_PARTITIONS)]
        )
        ended: set[int] = set()
        deadline_s = time.monotonic() + _TIMEOUT_S
        while len(ended) < ACCOUNT_PARTITIONS:
            messages = consumer.consume(_BATCH_MAX, timeout=_POLL_S)
            if messages:
                deadline_s = time.monotonic() + _TIMEOUT_S
            elif time.monotonic() > deadline_s:
                raise OSError(f"{bootstrap} sent no records of {ACCOUNTS_TOPIC} for {_TIMEOUT_S} s")
            for message in messages:
                error = message.error()
                partition, offset = message.partition(), message.offset()
                if error is None:
                    row_id, change, attempt = json.loads(message.value() or b"[]")
                    account = (message.key() or b"").decode()
                    entries.append(
                        Entry(row_id, account, change, attempt, partition or 0, offset or 0)
                    )
                elif error.name() == "_PARTITION_EOF":
                    ended.add(partition or 0)
                elif error.fatal() or not (error.retriable() or is_of_moved_leader(error)):
                    raise KafkaException(error)
    finally:
        consumer.close()
    return entries


def audit(
    transfers: Sequence[Transfer], committed_count: int, entries: Sequence[Entry],
    mirror_entries: Sequence[Entry] | None, journal: Journal,
) -> Findings:  # fmt: skip
    """Judge what was read; `committed_count` is how many input records the group has committed."""
    findings = Findings(rows_expected=committed_count)
    expected = {transfer.row_id: transfer for transfer in transfers}
    by_row: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_row[entry.row_id].append(entry)
    findings.rows_found = len(by_row)
    for row_id, found in by_row.items():
        _judge_row(findings, row_id, expected.get(row_id), found)
    if committed_count == len(transfers):
        findings.missing = [row_id for row_id in expected if row_id not in by_row]
    elif len(by_row) != committed_count:
        findings.missing = [f"{committed_count - len(by_row)} rows"]
    balances = Counter[str]()
    for entry in entries:
        balances[entry.account] += entry.change
    findings.accounts = len(balances)
    findings.sum_over_accounts = sum(balances.values())
    _find_losses(findings, by_row, journal)
    if mirror_entries is not None:
        findings.differing_regions = len(set(entries) ^ set(mirror_entries))
    return findings


def _judge_row(
    findings: Findings, row_id: str, transfer: Transfer | None, found: Sequence[Entry]
) -> None:
    if transfer is None:
        findings.wrong.append(f"{row_id}: no such row")
        return
    if len(found) == 1:
        findings.torn.append(row_id)
    elif len(found) > 2 or len({entry.attempt for entry in found}) > 1:
        findings.doubled.append(row_id)
    wanted = Counter([(transfer.source, -transfer.amount), (transfer.target, transfer.amount)])
    if len(found) == 2 and Counter((e.account, e.change) for e in found) != wanted:
        findings.wrong.append(f"{row_id}: {[(e.account, e.change) for e in found]}")


def _find_losses(
    findings: Findings, by_row: Mapping[str, Sequence[Entry]], journal: Journal
) -> None:
    there = {entry.attempt for found in by_row.values() for entry in found}
    findings.lost = [
        f"row {ack.row_id} (attempt {ack.attempt})"
        for ack in journal.acks
        if ack.attempt not in there
    ]
    findings.lost_unknown = sum(1 for ack in journal.unknown if ack.attempt not in there)


def shorten(items: Sequence[str]) -> str:
    """Return the items in one line, the long tail as a count."""
    shown = ", ".join(items[:_LISTED_MAX])
    more = len(items) - _LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
