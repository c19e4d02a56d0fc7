"""One drill: rounds of faults on a region of three nodes under load, then everything read back and judged.

Not here: clients (`clients`), sums (`figures`), what is wrong (`judge`).
"""

import faulthandler
import threading
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaException

from chaos.access.guard import Guard
from chaos.nodes.clients import TOPICS, NodesClients, grants
from chaos.nodes.figures import Played, pauses_s
from chaos.nodes.judge import judged
from chaos.nodes.plan import LASTING_FAULTS, Fault, Round
from chaos.nodes.stage import NODES, REGION, NodesStage
from chaos.readers import read_all

PATIENCE_S: Final = 60.0
DOWN_S: Final = 2.0
"""For how long a killed node is left dead: what clients do meanwhile is what is measured."""
AFTER_S: Final = 1.0
_LOOK_S: Final = 0.05


class Stall(threading.Thread):
    """How long this very process stood still: what it measures of others is worth no more than that."""

    def __init__(self) -> None:
        """Nothing is measured before `start`."""
        super().__init__(name="stall", daemon=True)
        self.longest_s = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Measure until stopped."""
        last_s = time.monotonic()
        while not self._stopping.wait(0.01):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s

    def taken(self) -> float:
        """Return the longest until now, and begin anew."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s

    def stop(self) -> None:
        """End."""
        self._stopping.set()


class NodesDrill:
    """The stage, its clients, and what was played."""

    def __init__(
        self, stage_: NodesStage, clients: NodesClients, *, spreads: bool = False, guard: Guard | None = None
    ) -> None:  # fmt: skip
        """Nothing is started. `spreads`: partitions are led by all nodes when a fault comes (ADR 53); `guard`: of a stage behind doors."""
        self.stage = stage_
        self.guard = guard
        self._spreads = spreads
        self.clients = clients
        self.played: list[Played] = []
        self._stall = Stall()

    def set_up(self) -> None:
        """Start nodes, topics and clients."""
        began_s = time.monotonic()
        self.stage.start()
        self.stage.wait_whole()
        self.stage.tell(f"three nodes in sync {time.monotonic() - began_s:.1f} s after their start")
        self._tell_memory()
        if self.guard is not None:
            self.guard.prepare(self.stage.bootstrap, grants(), NODES)
        self.clients.prepare()
        self.clients.start()
        if self.guard is not None:
            self.guard.start(self.stage.bootstrap)
        self._await_progress(time.monotonic(), "at the start")
        self._stall.start()

    def play(self, rounds: Iterable[Round]) -> None:
        """Play each round; end early where something is wrong."""
        for each in rounds:
            if self._spreads and not self.stage.spread():
                return
            self._quiet(each)
            self._play(each)
            self._audit_access(each.number)
            self.stage.check_ends()
            if self.stage.anomalies:
                return

    def _quiet(self, each: Round) -> None:
        """Leave the region alone: pauses of this time are the machine's."""
        began_s, errors = time.monotonic(), self.clients.errors()
        time.sleep(each.pause_s)
        now_s = time.monotonic()
        met = self.clients.errors() - errors
        self.played.append(Played("nothing", began_s, began_s, now_s, met))

    def _play(self, each: Round) -> None:
        name, roles = self.stage.victim_of(each.victim)
        kind = f"{each.fault.name.lower()} {roles}"
        errors = self.clients.errors()
        self._stall.taken()
        began_s = time.monotonic()
        at = time.strftime("%H:%M:%S", time.gmtime())
        self.stage.hurt(each.fault, name)
        if each.fault is Fault.KILL:
            time.sleep(DOWN_S)
        if each.fault in LASTING_FAULTS:
            time.sleep(DOWN_S)
            self._await_progress(time.monotonic(), f"round {each.number}, while it lasts")
        self.stage.mend(each.fault, name)
        is_whole = self.stage.wait_whole()
        whole_s = time.monotonic()
        self._await_progress(whole_s, f"after round {each.number}")
        time.sleep(AFTER_S)
        played = Played(kind, began_s, whole_s, time.monotonic(), self.clients.errors() - errors)
        self.played.append(played)
        found = pauses_s(self.clients.acked_s(), played)
        told = ", ".join(f"{who} {pause:.2f}" for who, pause in sorted(found.items()))
        self.stage.tell(
            f"round {each.number}: {kind} ({name} at {at}): {told}; {'in sync' if is_whole else 'NOT in sync'} after"
            f" {whole_s - began_s:.2f} s; this process stood still {self._stall.taken():.2f};"
            f" errors {dict(played.errors)}"
        )

    def _audit_access(self, number: int) -> None:
        """Nothing of access that was answered may be gone: no failover excuses it."""
        if self.guard is not None and self.guard.rest():
            self.guard.audit(number, REGION)
            self.guard.renew(number, acting=REGION, mirror=REGION)

    def _await_progress(self, since_s: float, when: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while late := self.clients.behind(since_s):
            if time.monotonic() > deadline_s:
                hang = self.stage.folder / f"hang-{len(self.stage.anomalies)}.txt"
                with hang.open("w") as out:
                    faulthandler.dump_traceback(file=out, all_threads=True)
                self.stage.blame(f"{when}: {', '.join(late)} did not get on: {hang}")
                return
            time.sleep(_LOOK_S)

    def _tell_memory(self) -> None:
        found = self.stage.resident_mb()
        self.stage.tell(
            "resident: " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in found.items())
        )

    def judge(self) -> None:
        """Stop the clients, read everything back and judge it."""
        left = self.clients.stop()
        if left:
            self.stage.tell(f"never let go by librdkafka: {', '.join(left)}")
        try:
            found = read_all(self.stage.bootstrap, TOPICS)
            wrong = judged(self.clients, found, self.stage.bootstrap)
        except (KafkaException, OSError) as error:
            self.stage.blame(f"what was written could not be read back: {error!r}")
            return
        for each in (*wrong, *self.stage.complaints()):
            self.stage.blame(each)
        self._tell_memory()
        self.stage.tell(f"{len(found)} records read back, {len(wrong)} things wrong")

    def tear_down(self) -> None:
        """Stop readers and nodes."""
        self._stall.stop()
        if self.guard is not None:
            self.guard.stop()
        self.clients.readers.stop()
        self.stage.check_ends()
        self.stage.close()
