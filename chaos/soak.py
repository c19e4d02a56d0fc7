"""`python -m chaos.soak --seed N --minutes M`: two regions under load, faults by a seed, everything judged.

After every round both regions are read back whole, read-committed, and judged. Whatever is wrong ends the run with exit
code 1; seed, schedule, data folder and logs are kept. Clients must get on by themselves after each round: who hangs is
an anomaly like any other.

Transactional workers come from the demo; plain producers and readers from this package.
Not here: what happens when (`chaos.schedule`), what is wrong (`chaos.soak_judge`, the demo's audit).
"""

import faulthandler
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.options import words_of
from chaos.plain_producers import (
    PLAIN_PARTITIONS,
    PLAIN_TOPIC,
    PlainJournal,
    PlainProducer,
    wait_progress,
)
from chaos.plays import PLAYS
from chaos.readers import Reader, read_all
from chaos.schedule import Kind, Round, rounds
from chaos.soak_judge import (
    Record,
    Shown,
    judge_losses,
    judge_plain,
    judge_shown,
    lost_ranges,
)
from chaos.soak_stage import PATIENCE_S, REGIONS, SoakStage
from region_broker.workbench import stage
from region_broker.workbench.audit import Entry, audit
from region_broker.workbench.dataset import Transfer
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.workload import (
    ACCOUNT_PARTITIONS,
    ACCOUNTS_TOPIC,
    GROUP_ID,
    INPUT_TOPIC,
    Fleet,
    Journal,
    committed_rows,
    produce_input,
)

INPUT_PARTITIONS: Final = 4
ROWS_PER_ROUND: Final = 500
WORKERS: Final = 3
REPLACE_AFTER_S: Final = 15.0
SHOW_PATIENCE_S: Final = 10.0
OVER: Final = ("empty", "complete_commit", "complete_abort", "dead")
READ_TOPICS: Final = {ACCOUNTS_TOPIC: ACCOUNT_PARTITIONS, PLAIN_TOPIC: PLAIN_PARTITIONS}


class Soak(SoakStage):
    """One run: the stage, the workload on it, and the judge."""

    def __init__(self, seed: int, folder: Path, plain_producers: int) -> None:
        """Plan a cluster in `folder`."""
        super().__init__(seed, folder)
        self._plain_producers = plain_producers
        self.replaced = 0
        self._transfers: list[Transfer] = []
        self._journal = Journal()
        self._plain = PlainJournal()
        self._judged: set[int] = set()
        self._source = REGIONS[0]
        self._churned = 0
        self._fleet: Fleet | None = None
        self._producers: list[PlainProducer] = []
        self._readers: dict[str, Reader] = {}

    def set_up(self) -> None:
        """Start regions, topics, workload."""
        self.cluster.start()
        client = AdminClient({"bootstrap.servers": self.cluster.place("eu").bootstrap})
        topics = {INPUT_TOPIC: INPUT_PARTITIONS, **READ_TOPICS}
        for future in client.create_topics([NewTopic(n, c, 1) for n, c in topics.items()]).values():
            future.result(15)
        self._feed()
        self._fleet = Fleet.start(WORKERS, self.cluster.bootstrap, self._journal)
        self._producers = [
            PlainProducer(n, self.cluster.bootstrap, self._plain, self.folder)
            for n in range(self._plain_producers)
        ]
        self._readers = {
            name: Reader(self.cluster.place(name).bootstrap, READ_TOPICS) for name in REGIONS
        }
        for thread in (*self._producers, *self._readers.values()):
            thread.start()

    def tear_down(self) -> None:
        """Stop workload and regions."""
        for producer in self._producers:
            producer.stop()
        for reader in self._readers.values():
            reader.stop()
        workers = self._fleet.workers if self._fleet is not None else []
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(5)  # one that librdkafka never lets go ends with this process
        for name in list(self.paused):
            self.resume(name)
        self.cluster.stop()

    def _feed(self) -> None:
        first = len(self._transfers)
        more = [
            Transfer(
                str(first + number),
                f"a{self.random.randrange(40)}",
                f"b{self.random.randrange(40)}",
                self.random.randrange(1, 100),
            )
            for number in range(ROWS_PER_ROUND)
        ]
        self._transfers += more
        produce_input(self.cluster.bootstrap, more, INPUT_PARTITIONS)
        stage.wait_mirrored(self.cluster, self.primary(), self.mirror(), PATIENCE_S)

    def play(self, each: Round) -> None:
        """Play one round, mend what it broke, and judge."""
        self.tell(str(each))
        primary = self.primary()
        mirror = next(name for name in REGIONS if name != primary)
        churn = threading.Thread(target=self._churn, daemon=True) if each.topic_churn else None
        if churn is not None:
            churn.start()
        time.sleep(each.pause_s)
        PLAYS[each.kind](self, primary, mirror, each.gap_s)
        self.mend()
        if churn is not None:
            churn.join(PATIENCE_S)
        if self._settles():
            self.judge()
        else:
            self.tell("  not judged: whoever still writes would look torn, doubled and taken back")

    def _settles(self) -> bool:
        """Let everybody come to rest; whoever does not is an anomaly, and there is no more to judge."""
        anomalies = len(self.anomalies)
        commits = len(self._journal.acks)
        if not wait_progress(self._plain, 50, PATIENCE_S):
            self.blame("plain producers hang")
        for producer in self._producers:
            if not producer.rest(PATIENCE_S):
                self.blame("a plain producer has messages that are not answered")
        primary = self.primary()
        try:
            stage.wait_until("the input to be worked off", PATIENCE_S, self._worked_off(primary))
        except (stage.StageError, KafkaException) as error:
            done = len(self._journal.acks) - commits
            self.blame(f"workers hang: {error}; {done} commits since; {self._journal.errors[-3:]}")
            self._diagnose()
        try:
            # A worker that hangs leaves its transaction open, and readers wait for what becomes of it.
            stage.wait_until(
                "every transaction to end", PATIENCE_S, lambda: not self._open(primary)
            )
            stage.wait_mirrored(self.cluster, primary, self.mirror(), PATIENCE_S)
        except stage.StageError as error:
            self.blame(f"{error}; open: {self._open(primary)}")
        return len(self.anomalies) == anomalies

    def _open(self, primary: str) -> list[str]:
        """Return the transactions that are not over, or why nobody can say."""
        try:
            answer = request(self.cluster.place(primary).http, "GET", "/v1/transactions")
        except ApiError as error:
            if error.code != "no-coordinator":
                raise
            return [str(error)]
        return [
            f"{each['transactional_id']}: {each['state']}"
            for each in answer["transactions"]
            if each["state"] not in OVER
        ]

    def _worked_off(self, primary: str) -> Callable[[], bool]:
        """Return what asks whether all input is committed, and lets new workers in where none gets on.

        1. A worker asks its region for the group's coordinator. 2. That region goes away, the worker goes on
        in the other one, whose metadata do not name the first one's node. 3. librdkafka waits for that node
        for ever, and past every time-out (its issues 5511 and 5456): only a new process gets on.
        """
        seen, since_s = -1, time.monotonic()

        def done() -> bool:
            nonlocal seen, since_s
            try:
                count = committed_rows(self.cluster.place(primary).bootstrap, INPUT_PARTITIONS)
            except KafkaException as error:
                # Offsets are not stable while a transaction holds newer ones, up to its time-out (20 s).
                if error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
                return False
            if count != seen:
                seen, since_s = count, time.monotonic()
            elif time.monotonic() - since_s > REPLACE_AFTER_S and count < len(self._transfers):
                self._replace_workers()
                since_s = time.monotonic()
            return count >= len(self._transfers)

        return done

    def _replace_workers(self) -> None:
        assert self._fleet is not None
        self.tell("  workers do not get on: new ones beside them (librdkafka issue 5511?)")
        self.replaced += WORKERS
        first = len(self._fleet.workers)
        fresh = Fleet.start(WORKERS, self.cluster.bootstrap, self._journal, first=first)
        for worker in self._fleet.workers:
            worker.stop()
        self._fleet.workers += fresh.workers

    def _diagnose(self) -> None:
        """Keep what clients and coordinators are waiting for: it is gone when all is stopped."""
        with (self.folder / "hang.txt").open("w") as out:
            faulthandler.dump_traceback(file=out, all_threads=True)
            out.flush()
            place = self.cluster.place(self.primary())
            for words, option, address in (
                (("group", "describe", GROUP_ID), "--bootstrap", place.bootstrap),
                (("txn", "list"), "--url", place.http),
            ):
                subprocess.run(
                    [sys.executable, "-m", "region_broker", *words,
                     option, address],
                    stdout=out, stderr=out, check=False, timeout=30,
                )  # fmt: skip

    def judge(self) -> None:
        """Read both regions and judge everything so far."""
        found = self._read_both()
        self._judge_transfers(found)
        losses = [each for name in REGIONS for each in stage.losses(self.cluster, name)]
        lost = lost_ranges(losses)
        for name, records in found.items():
            plain = [
                Record(r.partition, r.offset, r.value.decode())
                for r in records
                if r.topic == PLAIN_TOPIC
            ]
            with self._plain.lock:
                acked = dict(self._plain.acked)
            for anomaly in self._plain.faults():
                self.blame(anomaly)
            for anomaly in judge_plain(acked, plain, lost, PLAIN_TOPIC):
                self.blame(f"{name}: {anomaly}")
            shown = self._readers[name].shown()
            fresh = [each for each in lost if each.lineage_epoch not in self._judged]
            for anomaly in judge_shown(
                name, shown, records, fresh, transactional=frozenset({ACCOUNTS_TOPIC})
            ):
                self.blame(anomaly)
            self._readers[name].forget(shown - records)
        self._judged |= {each.lineage_epoch for each in lost}
        for anomaly in judge_losses(losses, self.planned):
            self.blame(anomaly)
        gone = sum(each["transaction_count"] for each in losses if each["exact"])
        self.tell(
            f"  judged: {len(self._transfers)} transfers, {len(self._plain.acked)} plain acks,"
            f" {gone} transactions and {sum(e['plain_record_count'] for e in losses if e['exact'])}"
            f" plain records listed as lost, {self._journal.rebuilds} workers rebuilt, {self.replaced} replaced,"
            f" {len(self._plain.fatal)} plain producers rebuilt, {len(self.anomalies)} anomalies"
        )

    def _read_both(self) -> dict[str, frozenset[Shown]]:
        """Read the primary, then the mirror until it shows the same: the last tidemark may be on its way."""
        primary, mirror = self.primary(), self.mirror()
        self._source = primary
        deadline_s = time.monotonic() + SHOW_PATIENCE_S
        wanted = read_all(self.cluster.place(primary).bootstrap, READ_TOPICS)
        while True:
            seen = read_all(self.cluster.place(mirror).bootstrap, READ_TOPICS)
            if seen == wanted or time.monotonic() > deadline_s:
                return {primary: wanted, mirror: seen}
            time.sleep(0.1)

    def _judge_transfers(self, found: Mapping[str, frozenset[Shown]]) -> None:
        primary = self.primary()
        mirror = next(name for name in REGIONS if name != primary)
        count = committed_rows(self.cluster.place(primary).bootstrap, INPUT_PARTITIONS)
        findings = audit(
            self._transfers, count, _entries(found[primary]), _entries(found[mirror]), self._journal
        )
        for broken in findings.broken:
            self.blame(broken)
        differing = [r for r in found[primary] ^ found[mirror] if r.topic == PLAIN_TOPIC]
        if differing:
            self.blame(f"plain records that differ between regions: {sorted(differing)[:8]}")
        exact = [
            each for name in REGIONS for each in stage.losses(self.cluster, name) if each["exact"]
        ]
        listed = sum(each["transaction_count"] for each in exact)
        if not len(findings.lost) <= listed <= len(findings.lost) + findings.lost_unknown:
            self.blame(
                f"{len(findings.lost)} acknowledged and {findings.lost_unknown} unanswered transfers"
                f" are not there, losses list {listed}: {findings.lost[:8]}"
            )

    def _churn(self) -> None:
        """Create a topic, delete the one before; whatever is in the way is no anomaly here."""
        client = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        self._churned += 1
        try:
            client.create_topics([NewTopic(f"churn-{self._churned}", 2, 1)])[
                f"churn-{self._churned}"
            ].result(20)
            if self._churned > 1:
                old = f"churn-{self._churned - 1}"
                client.delete_topics([old])[old].result(20)
        except KafkaException as error:
            self.tell(f"  topics: {error}")

    def next_round(self) -> None:
        """Feed and let everybody go on."""
        self._feed()
        for producer in self._producers:
            producer.go_on()

    def reconcile(self) -> None:
        """Compare both stopped regions byte by byte; who acted last is the source, the other may lag."""
        mirror = next(name for name in REGIONS if name != self._source)
        done = subprocess.run(
            [sys.executable, "-m", "region_broker", "reconcile", "all",
             "--primary", str(self.folder / self._source), "--mirror", str(self.folder / mirror),
             "--engine", "local", "--out", str(self.folder / "reconcile"), "-o", "json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            self.blame(f"reconcile: exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        else:
            self.tell("reconcile: " + str(json.loads(done.stdout).get("verdict")))


def _entries(records: frozenset[Shown]) -> list[Entry]:
    entries = []
    for record in records:
        if record.topic == ACCOUNTS_TOPIC:
            row_id, change, attempt = json.loads(record.value)
            entries.append(
                Entry(row_id, record.key.decode(), change, attempt, record.partition, record.offset)
            )
    return entries


@click.command()
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--minutes", type=float, default=3.0, show_default=True)
@click.option("--only", default="", callback=words_of([kind.name.lower() for kind in Kind], or_none=True),
              help="Kinds of rounds to play, with commas; all if empty.")  # fmt: skip
@click.option(
    "--producers",
    type=int,
    default=4,
    show_default=True,
    help="Plain idempotent producers; every other one has five requests in flight.",
)
@click.option("--keep", is_flag=True, help="Keep the data folder of a good run, too.")
def main(seed: int, minutes: float, only: list[str], producers: int, keep: bool) -> None:
    """Soak two regions in faults drawn from SEED for so many MINUTES."""
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{seed}-"))
    soak = Soak(seed, folder, producers)
    kinds = {Kind[name.upper()] for name in only} or set(Kind)
    soak.tell(f"seed {seed}, {minutes} minutes, data in {folder}")
    try:
        soak.set_up()
        for each in rounds(seed):
            if each.kind not in kinds:
                continue
            soak.play(each)
            if time.monotonic() - soak.began_s > minutes * 60 or soak.anomalies:
                break
            soak.next_round()
    except (stage.StageError, KafkaException, OSError) as error:
        soak.blame(f"the run could not go on: {error!r}")
    finally:
        soak.tear_down()
    soak.reconcile()
    if soak.anomalies:
        click.echo(f"\nseed {seed}: {len(soak.anomalies)} anomalies; everything is in {folder}")
        raise SystemExit(1)
    click.echo(f"\nseed {seed}: nothing wrong")
    if not keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
