"""`python -m chaos.soak --seed N --minutes M`: two regions under load, faults by a seed, everything judged.

INV-SK1  after every round both regions are read back whole, read-committed, and judged
INV-SK2  whatever is wrong ends the run with exit code 1; seed, schedule, data folder and logs are kept
INV-SK3  clients must get on by themselves after each round: who hangs is an anomaly like any other

Transactional workers come from the demo; plain producers and readers from this package.
Not here: what happens when (`chaos.schedule`), what is wrong (`chaos.soak_judge`, the demo's audit).
"""

import faulthandler
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.plain_producers import (
    PLAIN_PARTITIONS,
    PLAIN_TOPIC,
    PlainJournal,
    PlainProducer,
    wait_progress,
)
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
from region_broker.cli.demo import stage
from region_broker.cli.demo.audit import Entry, audit
from region_broker.cli.demo.dataset import Transfer
from region_broker.cli.demo.workload import (
    ACCOUNT_PARTITIONS,
    ACCOUNTS_TOPIC,
    GROUP_ID,
    INPUT_TOPIC,
    Fleet,
    Journal,
    committed_rows,
    produce_input,
)
from region_broker.cli.local_cluster import LocalCluster
from region_broker.cli.region_client import ApiError, request

REGIONS: Final = ("eu", "us")
INPUT_PARTITIONS: Final = 4
ROWS_PER_ROUND: Final = 500
WORKERS: Final = 3
PLAIN_PRODUCERS: Final = 2
PATIENCE_S: Final = 60.0
ACT_PATIENCE_S: Final = 30.0
SHOW_PATIENCE_S: Final = 10.0
READ_TOPICS: Final = {ACCOUNTS_TOPIC: ACCOUNT_PARTITIONS, PLAIN_TOPIC: PLAIN_PARTITIONS}


class Soak:
    """One run. `anomalies` holds what was found, in words."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Plan a cluster in `folder`."""
        self.seed = seed
        self.folder = folder
        self.anomalies: list[str] = []
        self.began_s = time.monotonic()
        self._random = Random(seed)
        self.cluster = LocalCluster.open(
            folder, region_count=2, port=0, new_cluster_id=UUID(int=self._random.getrandbits(128))
        )
        self._transfers: list[Transfer] = []
        self._journal = Journal()
        self._plain = PlainJournal()
        self._paused: set[str] = set()
        self._planned: set[int] = set()
        self._judged: set[int] = set()
        self._churned = 0
        self._fleet: Fleet | None = None
        self._producers: list[PlainProducer] = []
        self._readers: dict[str, Reader] = {}

    def tell(self, text: str) -> None:
        """Print with the time since the start."""
        click.echo(f"{time.monotonic() - self.began_s:7.1f}  {text}")

    def blame(self, text: str) -> None:
        """Note an anomaly."""
        self.anomalies.append(text)
        self.tell(f"ANOMALY {text}")

    # -- the stage ---------------------------------------------------------------------------

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
            PlainProducer(n, self.cluster.bootstrap, self._plain) for n in range(PLAIN_PRODUCERS)
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
        if self._fleet is not None:
            self._fleet.stop()
        for name in list(self._paused):
            self._resume(name)
        self.cluster.stop()

    def _feed(self) -> None:
        first = len(self._transfers)
        more = [
            Transfer(
                str(first + number),
                f"a{self._random.randrange(40)}",
                f"b{self._random.randrange(40)}",
                self._random.randrange(1, 100),
            )
            for number in range(ROWS_PER_ROUND)
        ]
        self._transfers += more
        produce_input(self.cluster.bootstrap, more, INPUT_PARTITIONS)
        stage.wait_mirrored(self.cluster, self.home(), self.mirror(), PATIENCE_S)

    def _view(self, name: str) -> Mapping[str, Any] | None:
        try:
            answer: Mapping[str, Any] = request(
                self.cluster.place(name).http, "GET", "/v1/region", timeout_s=2
            )
        except (OSError, ApiError):
            return None
        return answer

    def home(self) -> str:
        """Return who acts, once exactly one does and the other mirrors it."""
        found = ""

        def settled() -> bool:
            nonlocal found
            views = [self._view(name) for name in REGIONS]
            acting = [v for v in views if v is not None and v["acting"]]
            if len(acting) == 1 and all(v is not None for v in views):
                found = str(acting[0]["region"])
                return True
            return False

        stage.wait_until("one region to act", PATIENCE_S, settled)
        return found

    def mirror(self) -> str:
        """Return the other one."""
        home = self.home()
        return next(name for name in REGIONS if name != home)

    def _pause(self, name: str) -> None:
        self.tell(f"  stop {name}")
        self.cluster.signal(name, signal.SIGSTOP)
        self._paused.add(name)

    def _resume(self, name: str) -> None:
        self.tell(f"  cont {name}")
        self.cluster.signal(name, signal.SIGCONT)
        self._paused.discard(name)

    def _kill(self, name: str) -> None:
        self.tell(f"  kill {name}")
        self.cluster.kill(name)
        self._paused.discard(name)

    def _start(self, name: str) -> None:
        if not self.cluster.pids(name):
            self.tell(f"  start {name}")
            self.cluster.start([name])

    def _order(self, what: str, name: str) -> Mapping[str, Any] | None:
        body: dict[str, Any] = {"to": name, "domain": "main"}
        if what == "failover":
            body["confirm"] = True
        self.tell(f"  order {what} to {name}")
        try:
            answer: Mapping[str, Any] = request(
                self.cluster.place(name).http, "POST", f"/v1/region/{what}", body, timeout_s=10
            )
        except ApiError as error:
            self.tell(f"  refused: {error.code}: {error}")
            return None
        except OSError as error:
            self.tell(f"  no answer: {error}")
            return None
        return answer

    def _follow(self, name: str, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        path = f"/v1/operations/{operation['operation_id']}"

        def ended() -> bool:
            nonlocal operation
            operation = request(self.cluster.place(name).http, "GET", path)
            return bool(operation["status"] != "running")

        stage.wait_until(f"the end of {operation['kind']} to {name}", PATIENCE_S, ended)
        self.tell(
            f"  {operation['kind']} to {name}: {operation['status']} {operation['error']}"
            f" {operation['steps'][-3:]}"
        )
        return operation

    def _fail_over(self, name: str) -> None:
        """Order until it is done: an operator who does not give up."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            operation = self._order("failover", name)
            if operation is not None:
                operation = self._follow(name, operation)
                if operation["status"] == "succeeded":
                    return
            view = self._view(name)
            if view is not None and view["acting"]:
                return
            time.sleep(0.2)
        self.blame(f"no failover to {name} within {PATIENCE_S} s")

    def _switch(self, name: str) -> None:
        operation = self._order("switch", name)
        if operation is None:
            self.blame(f"a switch to {name} was refused")
            return
        operation = self._follow(name, operation)
        if operation["status"] == "succeeded":
            self._planned.add(operation["region_epoch"])
        else:
            self.blame(f"a switch between two live regions did not work: {operation['error']}")

    # -- rounds ------------------------------------------------------------------------------

    def play(self, each: Round) -> None:
        """Play one round, mend what it broke, and judge."""
        self.tell(str(each))
        home = self.home()
        mirror = next(name for name in REGIONS if name != home)
        churn = threading.Thread(target=self._churn, daemon=True) if each.topic_churn else None
        if churn is not None:
            churn.start()
        time.sleep(each.pause_s)
        _PLAYS[each.kind](self, home, mirror, each.gap_s)
        self._mend()
        if churn is not None:
            churn.join(PATIENCE_S)
        self._settle()
        self.judge()

    def _mend(self) -> None:
        for name in list(self._paused):
            self._resume(name)
        for name, code in self.cluster.dead().items():
            self.blame(f"the node of {name} ended by itself with exit code {code}")
        for name in REGIONS:
            self._start(name)
        deadline_s = time.monotonic() + ACT_PATIENCE_S
        while time.monotonic() < deadline_s:
            views = [self._view(name) for name in REGIONS]
            roles = sorted(str(v["role"]) if v is not None else "?" for v in views)
            if roles == ["acting", "mirror"] and sum(v["acting"] for v in views if v) == 1:
                return
            time.sleep(0.1)
        stuck = [
            {k: v[k] for k in ("region", "phase", "acting", "reason_not_acting", "region_epoch")}
            for v in map(self._view, REGIONS)
            if v is not None
        ]
        self.blame(f"not one home and one mirror within {ACT_PATIENCE_S:.0f} s: {stuck}")
        if not any(v["acting"] for v in stuck):
            self._fail_over("us")

    def _settle(self) -> None:
        commits = len(self._journal.acks)
        if not wait_progress(self._plain, 50, PATIENCE_S):
            self.blame("plain producers hang")
        for producer in self._producers:
            if not producer.rest(PATIENCE_S):
                self.blame("a plain producer has messages that are not answered")
        home = self.home()
        total = len(self._transfers)
        try:
            stage.wait_until(
                "the input to be worked off", PATIENCE_S,
                lambda: committed_rows(self.cluster.place(home).bootstrap, INPUT_PARTITIONS) >= total,
            )  # fmt: skip
        except (stage.StageError, KafkaException) as error:
            done = len(self._journal.acks) - commits
            self.blame(f"workers hang: {error}; {done} commits since; {self._journal.errors[-3:]}")
            self._diagnose()
        try:
            stage.wait_mirrored(self.cluster, home, self.mirror(), PATIENCE_S)
        except stage.StageError as error:
            self.blame(f"the mirror does not catch up: {error}")

    def _diagnose(self) -> None:
        """Keep what clients and coordinators are waiting for: it is gone when all is stopped."""
        with (self.folder / "hang.txt").open("w") as out:
            faulthandler.dump_traceback(file=out, all_threads=True)
            out.flush()
            for words in (("group", "describe", GROUP_ID), ("txn", "list")):
                subprocess.run(
                    [sys.executable, "-m", "region_broker", *words,
                     "--bootstrap", self.cluster.place(self.home()).bootstrap],
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
        for anomaly in judge_losses(losses, self._planned):
            self.blame(anomaly)
        gone = sum(each["transaction_count"] for each in losses if each["exact"])
        self.tell(
            f"  judged: {len(self._transfers)} transfers, {len(self._plain.acked)} plain acks,"
            f" {gone} transactions and {sum(e['plain_record_count'] for e in losses if e['exact'])}"
            f" plain records listed as lost, {self._journal.rebuilds} workers rebuilt,"
            f" {len(self._plain.fatal)} plain producers rebuilt, {len(self.anomalies)} anomalies"
        )

    def _read_both(self) -> dict[str, frozenset[Shown]]:
        """Read home, then the mirror until it shows the same: the last tidemark may be on its way."""
        home, mirror = self.home(), self.mirror()
        deadline_s = time.monotonic() + SHOW_PATIENCE_S
        wanted = read_all(self.cluster.place(home).bootstrap, READ_TOPICS)
        while True:
            seen = read_all(self.cluster.place(mirror).bootstrap, READ_TOPICS)
            if seen == wanted or time.monotonic() > deadline_s:
                return {home: wanted, mirror: seen}
            time.sleep(0.1)

    def _judge_transfers(self, found: Mapping[str, frozenset[Shown]]) -> None:
        home = self.home()
        mirror = next(name for name in REGIONS if name != home)
        count = committed_rows(self.cluster.place(home).bootstrap, INPUT_PARTITIONS)
        findings = audit(
            self._transfers, count, _entries(found[home]), _entries(found[mirror]), self._journal
        )
        for broken in findings.broken:
            self.blame(broken)
        differing = [r for r in found[home] ^ found[mirror] if r.topic == PLAIN_TOPIC]
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
        """Compare both stopped regions byte by byte."""
        done = subprocess.run(
            [sys.executable, "-m", "region_broker", "reconcile", "all",
             "--source", str(self.folder / "eu"), "--mirror", str(self.folder / "us"),
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


def _home_killed(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._kill(home)
    time.sleep(gap_s)
    soak._fail_over(mirror)
    time.sleep(gap_s)


def _mirror_killed(soak: Soak, _home: str, mirror: str, gap_s: float) -> None:
    soak._kill(mirror)
    time.sleep(gap_s)


def _home_killed_briefly(soak: Soak, home: str, _mirror: str, gap_s: float) -> None:
    soak._kill(home)
    time.sleep(gap_s)


def _home_paused(soak: Soak, home: str, _mirror: str, gap_s: float) -> None:
    soak._pause(home)
    time.sleep(gap_s)


def _mirror_paused(soak: Soak, _home: str, mirror: str, gap_s: float) -> None:
    soak._pause(mirror)
    time.sleep(gap_s)


def _taker_killed(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._kill(home)
    for factor in (1.0, 0.5):
        soak._order("failover", mirror)
        time.sleep(0.05 + gap_s * factor)
        soak._kill(mirror)
        soak._start(mirror)
    soak._fail_over(mirror)


def _failover_alive(soak: Soak, _home: str, mirror: str, _gap_s: float) -> None:
    soak._fail_over(mirror)


def _failover_paused(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._pause(home)
    soak._fail_over(mirror)
    time.sleep(gap_s)
    soak._resume(home)


def _switch(soak: Soak, _home: str, mirror: str, _gap_s: float) -> None:
    soak._switch(mirror)


def _switch_twice(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._switch(mirror)
    time.sleep(gap_s)
    soak._mend()
    soak._switch(home)


def _switch_taker_killed(soak: Soak, _home: str, mirror: str, gap_s: float) -> None:
    soak._order("switch", mirror)
    time.sleep(gap_s)
    soak._kill(mirror)


def _switch_home_killed(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._order("switch", mirror)
    time.sleep(gap_s)
    soak._kill(home)
    soak._fail_over(mirror)


def _failovers_in_a_row(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    for old, new in ((home, mirror), (mirror, home), (home, mirror)):
        soak._kill(old)
        soak._fail_over(new)
        soak._start(old)
        soak._mend()
        time.sleep(gap_s)


def _both_killed(soak: Soak, home: str, mirror: str, gap_s: float) -> None:
    soak._kill(home)
    soak._kill(mirror)
    time.sleep(gap_s)


_PLAYS: Final[dict[Kind, Callable[[Soak, str, str, float], None]]] = {
    Kind.HOME_KILLED: _home_killed,
    Kind.MIRROR_KILLED: _mirror_killed,
    Kind.HOME_KILLED_BRIEFLY: _home_killed_briefly,
    Kind.HOME_PAUSED: _home_paused,
    Kind.MIRROR_PAUSED: _mirror_paused,
    Kind.TAKER_KILLED: _taker_killed,
    Kind.FAILOVER_ALIVE: _failover_alive,
    Kind.FAILOVER_PAUSED: _failover_paused,
    Kind.SWITCH: _switch,
    Kind.SWITCH_TWICE: _switch_twice,
    Kind.SWITCH_TAKER_KILLED: _switch_taker_killed,
    Kind.SWITCH_HOME_KILLED: _switch_home_killed,
    Kind.FAILOVERS_IN_A_ROW: _failovers_in_a_row,
    Kind.BOTH_KILLED: _both_killed,
}


@click.command()
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--minutes", type=float, default=3.0, show_default=True)
@click.option("--only", default="", help="Kinds of rounds to play, with commas; all if empty.")
@click.option("--keep", is_flag=True, help="Keep the data folder of a good run, too.")
def main(seed: int, minutes: float, only: str, keep: bool) -> None:
    """Soak two regions in faults drawn from SEED for so many MINUTES."""
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{seed}-"))
    soak = Soak(seed, folder)
    kinds = {Kind[name.strip().upper()] for name in only.split(",") if name.strip()} or set(Kind)
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
