"""Plays the coordinator scenarios in `txn_coordinator/*.txt`: one command a line, its effects after `->`.

Commands (name=t unless given; partitions as topic/number):
    init [txn=N] [pair=ID/EPOCH] [timeout_ms=N]     add pair=ID/EPOCH PARTITION... [tv=2]
    end pair=ID/EPOCH commit|abort [tv=2]           verify pair=ID/EPOCH PARTITION
    durable        everything appended is below the high watermark
    markers        every marker that was sent is confirmed
    enter R | release R                             round number R of term 7
    advance MS | timeout                            monotonic time; scan for overdue transactions
    hold-expires   every held request has waited long enough
    crash [keep=N] load again from the first N ledger records (default all), new leader epoch
    takeover [open=ID/EPOCH@PARTITION] ...          load in a new region (epoch 16) and adopt
    show [txn=N]   the entry
Set REWRITE_SCENARIOS=1 to write what happens into the files; the diff is what is reviewed.
"""

import os
import re
from pathlib import Path

import pytest

from idempotency.decision import round_number, round_of
from idempotency.identity import ProducerEpoch, ProducerId, ProducerPair, TopicPartition
from idempotency.partition_state import OpenTxn
from idempotency.pieces import drained
from tests.fixtures.coordinator import CoreFixture, tp
from txn_coordinator import events as ev
from txn_coordinator.serving.adoption import sort_out

FOLDER = Path(__file__).parent / "txn_coordinator"
SCENARIOS = sorted(FOLDER.glob("*.txt"))


class Player:
    """One scenario's fixture."""

    def __init__(self) -> None:
        """Start with an empty ledger."""
        self.fixture = CoreFixture()
        self.seen_answers: dict[int, None] = {}
        self.seen_held = 0
        self.seen_sent = 0

    def play(self, command: str) -> str:
        """Carry out one command; return what came of it."""
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        rows = len(self.fixture.rows)
        handler = getattr(self, "_" + verb.replace("-", "_"))
        said = handler(options, plain)
        if said is not None:
            return str(said)
        return self._effects(rows) or "nothing"

    def _effects(self, rows: int) -> str:
        fixture = self.fixture
        found = []
        written = len(fixture.rows) - rows
        if written > 0:
            found.append(f"wrote={written}")
        for number, answer in fixture.answers.items():
            if number not in self.seen_answers:
                self.seen_answers[number] = None
                pair = ""
                if answer.producer_id >= 0:
                    pair = f" pair={answer.producer_id}/{answer.producer_epoch}"
                found.append(f"#{number} {answer.verdict.name}{pair}")
        found += [f"#{number} held" for number in fixture.held[self.seen_held :]]
        self.seen_held = len(fixture.held)
        for order in fixture.sent[self.seen_sent :]:
            kind = "COMMIT" if order.commit else "ABORT"
            where = ",".join(f"{part.topic}/{part.partition}" for part in order.partitions)
            decision = order.decision
            found.append(
                f"send {kind} {order.producer_id}/{order.producer_epoch} to {where} "
                f"decision={decision.leader_epoch >> 16}.{decision.leader_epoch & 0xFFFF}@"
                f"{decision.offset} round={round_number(decision.stamp)}"
            )
        self.seen_sent = len(fixture.sent)
        return "; ".join(found)

    def _init(self, options: dict[str, str], _plain: list[str]) -> None:
        pid, epoch = _pair(options.get("pair", "-1/-1"))
        timeout_ms = int(options.get("timeout_ms", "60000"))
        self.fixture.init(options.get("txn", "t"), timeout_ms, pid, epoch)

    def _add(self, options: dict[str, str], plain: list[str]) -> None:
        pair = _pair(options["pair"])
        partitions = [_partition(word) for word in plain]
        name, tv = options.get("txn", "t"), int(options.get("tv", "1"))
        self.fixture.add(*pair, *partitions, name=name, tv=tv)

    def _end(self, options: dict[str, str], plain: list[str]) -> None:
        pair = _pair(options["pair"])
        name, tv = options.get("txn", "t"), int(options.get("tv", "1"))
        self.fixture.end(*pair, plain == ["commit"], name=name, tv=tv)

    def _verify(self, options: dict[str, str], plain: list[str]) -> str:
        pair = _pair(options["pair"])
        verdict = self.fixture.core.view.verify(
            options.get("txn", "t"), *pair, _partition(plain[0])
        )
        assert verdict is not None
        return verdict.name

    def _durable(self, _options: dict[str, str], _plain: list[str]) -> None:
        self.fixture.persist()

    def _markers(self, _options: dict[str, str], _plain: list[str]) -> None:
        sent, self.fixture.sent, self.seen_sent = self.fixture.sent, [], 0
        for order in sent:
            for partition in order.partitions:
                confirmed = ev.MarkerConfirmed(order.transactional_id, order.decision, partition)
                self.fixture.step(confirmed)

    def _enter(self, _options: dict[str, str], plain: list[str]) -> None:
        self.fixture.step(ev.EnterRound(round_of(7, int(plain[0]))))

    def _release(self, _options: dict[str, str], plain: list[str]) -> None:
        self.fixture.step(ev.ReleaseRound(round_of(7, int(plain[0]))))

    def _advance(self, _options: dict[str, str], plain: list[str]) -> str:
        self.fixture.now_ms += int(plain[0])
        return f"now_ms={self.fixture.now_ms}"

    def _timeout(self, _options: dict[str, str], _plain: list[str]) -> None:
        for name in self.fixture.core.view.timed_out(self.fixture.now_ms):
            self.fixture.step(ev.TransactionTimedOut(name))

    def _hold_expires(self, _options: dict[str, str], _plain: list[str]) -> None:
        for name, entry in list(self.fixture.entries.items()):
            for request in list(entry.parked.values()):
                self.fixture.step(ev.HoldExpired(request.request_id, name))

    def _crash(self, options: dict[str, str], _plain: list[str]) -> None:
        keep = int(options["keep"]) if "keep" in options else None
        self._replace(self.fixture.reload(rows=keep))
        self.fixture.resume()

    def _takeover(self, options: dict[str, str], _plain: list[str]) -> None:
        fixture = self.fixture.reload(region_epoch=16, leader_epoch=16 << 16 | 1)
        self._replace(fixture)
        found: list[tuple[TopicPartition, OpenTxn]] = []
        if "open" in options:
            pair, partition = options["open"].split("@")
            found = [(_partition(partition), OpenTxn(*_pair(pair), 0, 0))]
        orphans = drained(sort_out(found, list(fixture.core.view.records()))).orphans
        fixture.step(ev.MarkersDeferred(deferred=True))
        for record in fixture.core.view.ongoing():
            partitions = tuple(part for part, txn in found if txn.producer_id == record.producer_id)
            fixture.step(ev.AdoptOngoing(record.transactional_id, partitions))
        for orphan in orphans:
            fixture.step(orphan)
        fixture.persist()
        fixture.step(ev.MarkersDeferred(deferred=False))
        fixture.resume()

    def _replace(self, fixture: CoreFixture) -> None:
        fixture.requests = self.fixture.requests
        self.fixture = fixture
        self.seen_held = self.seen_sent = 0

    def _show(self, options: dict[str, str], _plain: list[str]) -> str:
        name = options.get("txn", "t").replace("orphan-", "\x00orphan-")
        entry = self.fixture.entries.get(name)
        if entry is None:
            return "unknown"
        record = entry.record
        pending = f" pending={entry.pending.status.name}" if entry.pending else ""
        return f"{record.status.name} pair={record.producer_id}/{record.producer_epoch}{pending}"


def _pair(text: str) -> ProducerPair:
    pid, epoch = text.rsplit("/", 1)
    return ProducerId(int(pid)), ProducerEpoch(int(epoch))


def _partition(text: str) -> TopicPartition:
    topic, number = text.rsplit("/", 1)
    return tp(topic, int(number))


def replayed(text: str) -> str:
    """Return the scenario with what really happens behind each arrow."""
    player = Player()
    lines = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            lines.append(line)
            continue
        command = re.split(r"\s*->", line)[0].strip()
        lines.append(f"{command:<44} -> {player.play(command)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text()
    happened = replayed(written)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == written


def test_there_are_scenarios() -> None:
    assert SCENARIOS
