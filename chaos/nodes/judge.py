"""What is wrong with a drill of nodes, from what its clients were answered and what is read back at the end.

Within a region nothing acknowledged may be lost, by whichever fault: no losses are listed that would excuse one.

Not here: each judgement (`chaos.checker`, `chaos.soak_judge`, the demo's audit).
"""

import json
from collections.abc import Iterable
from typing import Final

from chaos.checker import check
from chaos.history import History, seen
from chaos.nodes.clients import INPUT_PARTITIONS, TELLERS_TOPIC, NodesClients
from chaos.plain_producers import PLAIN_TOPIC
from chaos.soak_judge import Record, Shown, few, judge_plain
from chaos.writers.sightings import judge_sightings
from chaos.writers.writer import TOPIC as TRANSFERS_TOPIC
from region_broker.workbench.audit import Entry, audit
from region_broker.workbench.workload import ACCOUNTS_TOPIC, committed_rows

READERS_S: Final = 60.0


def judged(clients: NodesClients, found: frozenset[Shown], bootstrap: str) -> list[str]:
    """Return what is wrong; asks the region how far its group has committed."""
    return [
        *_tellers(clients, found),
        *_plain(clients, found),
        *_workers(clients, found, committed_rows(bootstrap, INPUT_PARTITIONS)),
        *_writers(clients, found),
    ]


def _of(topic: str, found: Iterable[Shown]) -> list[Shown]:
    return sorted(each for each in found if each.topic == topic)


def _tellers(clients: NodesClients, found: frozenset[Shown]) -> list[str]:
    records = [seen(r.partition, r.offset, r.value) for r in _of(TELLERS_TOPIC, found)]
    history = History(attempts=clients.tellers_journal.attempts, final={"region": records})
    return few("tellers", [f"{each.name} {each.detail}" for each in check(history)])


def _plain(clients: NodesClients, found: frozenset[Shown]) -> list[str]:
    records = [Record(r.partition, r.offset, r.value.decode()) for r in _of(PLAIN_TOPIC, found)]
    journal = clients.plain_journal
    return [*judge_plain(journal.acked, records, (), PLAIN_TOPIC), *journal.faults()]


def _writers(clients: NodesClients, found: frozenset[Shown]) -> list[str]:
    """Judge what writers of three clients wrote, and what readers of each were shown of it."""
    records = [seen(r.partition, r.offset, r.value) for r in _of(TRANSFERS_TOPIC, found)]
    history = History(attempts=clients.writers.journal.attempts, final={"region": records})
    wrong = few("writers", [f"{each.name} {each.detail}" for each in check(history)])
    late = clients.readers.await_ends({r.partition: r.offset for r in records}, READERS_S)
    wrong += [f"the reader of {client} was not shown all in {READERS_S:.0f} s" for client in late]
    for reader in clients.readers.each:
        wrong += judge_sightings(reader.client, reader.sightings.shown(), records)
    return wrong


def _workers(clients: NodesClients, found: frozenset[Shown], committed: int) -> list[str]:
    entries = []
    for record in _of(ACCOUNTS_TOPIC, found):
        row_id, change, attempt = json.loads(record.value)
        entries.append(
            Entry(row_id, record.key.decode(), change, attempt, record.partition, record.offset)
        )
    findings = audit(clients.rows, committed, entries, None, clients.workers_journal)
    return [
        *(f"workers: {each}" for each in findings.broken),
        *few("a worker's acknowledged commit is gone", findings.lost),
    ]
