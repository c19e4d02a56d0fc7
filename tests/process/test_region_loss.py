"""Real processes: the primary is SIGKILLed in the middle of transfers, the other region takes over, the old one returns.

One pair of regions lives through several losses, each time of the region that acts: what one takeover leaves
behind is what the next one starts from. After each, everything ever written is read back in both regions. Before
each, an auditor asks the mirror for the ends of all accounts at once and reads up to them, while transfers go on.
"""

import json
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.checker import check
from chaos.history import History, Seen, seen
from chaos.transfers import (
    ACCOUNTS,
    END,
    TOPIC,
    Journal,
    Reader,
    Teller,
    Watcher,
    end_all,
    tellers,
    write_ends,
)
from region_broker.cli.demo.mirror_audit import Audit, MirrorAuditor
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_mirrored
from tests.process.own_process import run_in_own_process

pytestmark = [pytest.mark.process, pytest.mark.slow]
LOSSES_PER_PAIR = 5
TELLERS = 3
AUDIT_PAUSE_S = 0.1
TIDEMARK = (sys.executable, "-m", "region_broker")


@contextmanager
def cluster(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster.open(folder, region_count=2, port=0, new_cluster_id=UUID(int=5)) as made:
        made.start()
        admin = AdminClient({"bootstrap.servers": made.plan.regions[0].bootstrap})
        admin.create_topics([NewTopic(TOPIC, ACCOUNTS, 1)])[TOPIC].result(20)
        yield made
        assert made.dead() == {}


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def half_of_a_transfer(value: bytes) -> tuple[str, int] | None:
    if value == END:
        return None
    record = seen(0, 0, value)
    return record.attempt, record.change


def fail_over(cluster: LocalCluster, target: str) -> None:
    done = subprocess.run(
        [*TIDEMARK, "region", "failover", "--to", target, "--yes", "--url", cluster.http],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", [1])
def test_transfers_survive_the_loss_of_the_primary_region(tmp_path: Path, seed: int) -> None:
    run_in_own_process("tests.process.test_region_loss", tmp_path, str(seed))


class Losses:
    """The run of one pair."""

    def __init__(self, cluster: LocalCluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.journal = Journal()
        self.acting, self.mirror = (place.name for place in cluster.plan.regions)
        self.shown: list[Seen] = []
        self.audits: list[Audit] = []

    def run(self) -> None:
        working = list(tellers(TELLERS, self.cluster.bootstrap, self.journal, self.chance))
        for _ in range(LOSSES_PER_PAIR):
            self.lose_the_acting_region()
            end_all(working, lambda name: pytest.fail(f"{name} hangs"))
            self.judge()
            working = [self.successor(teller) for teller in working]
        end_all(working, lambda name: pytest.fail(f"{name} hangs"))
        assert any(audit.transfer_count for audit in self.audits)

    def successor(self, teller: Teller) -> Teller:
        """Start a new instance of the application: same transactional id."""
        new = Teller(
            teller.name, self.cluster.bootstrap, self.journal, self.chance.randrange(1 << 30)
        )
        new._number = teller._number  # tries are numbered through
        new.start()
        return new

    def lose_the_acting_region(self) -> None:
        bootstrap = self.cluster.place(self.mirror).bootstrap
        watcher = Watcher(bootstrap)
        watcher.start()
        wait_mirrored(self.cluster, self.acting, self.mirror, 60)
        auditor = MirrorAuditor(bootstrap, TOPIC, ACCOUNTS, half_of_a_transfer, AUDIT_PAUSE_S)
        auditor.start()
        term = self.journal.term
        self.journal.await_commits(
            term, self.journal.committed(term) + self.chance.randrange(10, 80)
        )
        auditor.stop()
        self.cluster.kill(self.acting)
        shown = list(watcher.shown)
        self.journal.term += 1
        fail_over(self.cluster, self.mirror)
        self.journal.await_commits(self.journal.term, self.chance.randrange(5, 20))
        self.cluster.start([self.acting])
        self.acting, self.mirror = self.mirror, self.acting
        self.journal.await_commits(
            self.journal.term, self.journal.committed(self.journal.term) + 10
        )
        watcher.stop()
        self.shown += shown
        audits = auditor.result()
        print(f"{len(audits)} audits of the mirror, the last of {audits[-1:]}")
        assert [audit for audit in audits if not audit.holds] == []
        self.audits += audits

    def judge(self) -> None:
        ends = write_ends(self.cluster.place(self.acting).bootstrap)
        final = {}
        for place in self.cluster.plan.regions:
            reader = Reader(place.bootstrap)
            final[place.name] = list(reader.read_to(ends))
            reader.close()
        history = History(
            attempts=self.journal.attempts, final=final, shown=self.shown, listed=self.listed()
        )
        assert check(history) == []
        print(f"{self.journal.committed(self.journal.term)} commits in term {self.journal.term}")

    def listed(self) -> Counter[str]:
        """Return how many commits of each teller the losses of all takeovers list."""
        lost: dict[tuple[int, str], str] = {}
        for place in self.cluster.plan.regions:
            for losses in get(place.http + "/v1/region/losses")["losses"]:
                assert losses["unexplained"] == [], losses
                for transaction in losses["transactions"]:
                    decision = json.dumps(transaction["decision"], sort_keys=True)
                    key = losses["lineage_epoch"], decision
                    lost[key] = transaction["transactional_id"]
        return Counter(lost.values())


if __name__ == "__main__":
    with cluster(Path(sys.argv[1])) as pair:
        Losses(pair, random.Random(int(sys.argv[2]))).run()
