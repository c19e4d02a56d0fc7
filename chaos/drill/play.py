"""One drill: the primary is killed, a second region takes over, and then a second failover with the third region in some state.

Clients must get on by themselves after each failover: whoever does not within the patience is an anomaly.

Not here: the clients (`chaos.drill.clients`), the sums (`chaos.drill.gaps`).
"""

import enum
import faulthandler
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chaos.drill.clients import DrillClients
from chaos.drill.gaps import Phase
from chaos.soak_stage import SoakStage
from region_broker.workbench import stage

PRIMARY, SECOND, THIRD = "eu", "us", "ap"
SETTLE_S: Final = 4.0
SETTLED_COMMITS: Final = 3
MIRRORED_S: Final = 60.0


class Third(enum.Enum):
    """How the region that takes no part is at the second failover."""

    PRIMARY_STAYS_DEAD = "the primary stays dead; the third region takes over from the second"
    DEAD_BEFORE = (
        "the third one was killed at the start; the primary, back again, takes over from the second"
    )
    KILLED_WITH_SECOND = (
        "the third one is killed together with the second; the primary, back again, takes over"
    )
    KILLED_WITH_PRIMARY = "the third one is killed together with the primary; the primary comes back and takes over from the second"
    PAUSED = "the third one stands still from the start; the primary, back again, takes over from the second"
    PAUSED_LATE = (
        "the third one stands still after the first failover; the primary, back again, takes over"
    )
    PRIMARY_RETURNS = "the primary starts while the third one takes over from the second"
    SECOND_PAUSED = "the second one stands still instead of being killed; the primary, back again, takes over from it"


class Drill(SoakStage):
    """The stage of one drill."""

    def __init__(self, seed: int, folder: Path, third: Third, patience_s: float) -> None:
        """Plan three regions in `folder`."""
        super().__init__(seed, folder, region_count=3)
        self.third = third
        self.phases: list[Phase] = []
        self._patience_s = patience_s
        self._gap_s = self.random.uniform(0.0, 2.0)

    def set_up(self, clients: DrillClients) -> None:
        """Start regions, topics and clients."""
        self.cluster.start()
        clients.prepare(self.cluster.place(PRIMARY).bootstrap)
        stage.wait_mirrored(self.cluster, PRIMARY, SECOND, MIRRORED_S)
        stage.wait_mirrored(self.cluster, PRIMARY, THIRD, MIRRORED_S)
        clients.start()

    def tear_down(self) -> None:
        """Stop the regions; one that has ended by itself is an anomaly."""
        for name in list(self.paused):
            self.resume(name)
        self.check_ends()
        self.cluster.stop()

    def play(self, clients: DrillClients) -> None:
        """Play it; `phases` says afterwards what was when."""
        self._settle("start", clients)
        if self.third in (Third.DEAD_BEFORE, Third.PAUSED):
            self._settle("without the third one", clients, self._lose_third)
        self._phase("first outage", self._first_failover, outage=True)
        self._settle("after the first failover", clients)
        if self.third is Third.PAUSED_LATE:
            self._settle("without the third one", clients, self._lose_third)
        self._phase("between", self._between)
        self._phase("second outage", self._second_failover, outage=True)
        self._settle("after the second failover", clients)
        self._phase("end", lambda: time.sleep(SETTLE_S))

    def _lose_third(self) -> None:
        (self.kill if self.third is Third.DEAD_BEFORE else self.pause)(THIRD)

    def _first_failover(self) -> None:
        self.kill(PRIMARY)
        if self.third is Third.KILLED_WITH_PRIMARY:
            self.kill(THIRD)
        time.sleep(self._gap_s)
        self.fail_over(SECOND)

    def _between(self) -> None:
        """Bring back who is to take over, and let it copy."""
        candidate = self._candidate()
        if candidate == PRIMARY:
            self.start(PRIMARY)
        stage.wait_mirrored(self.cluster, SECOND, candidate, MIRRORED_S)
        time.sleep(self._gap_s)

    def _second_failover(self) -> None:
        (self.pause if self.third is Third.SECOND_PAUSED else self.kill)(SECOND)
        if self.third is Third.KILLED_WITH_SECOND:
            self.kill(THIRD)
        time.sleep(self._gap_s)
        if self.third is Third.PRIMARY_RETURNS:
            self.tell(f"  start {PRIMARY}")
            self.cluster.launch(PRIMARY)
        self.fail_over(self._candidate())

    def _candidate(self) -> str:
        return THIRD if self.third in (Third.PRIMARY_STAYS_DEAD, Third.PRIMARY_RETURNS) else PRIMARY

    def _blame_hanging(self, phase: str, late: Sequence[str]) -> None:
        """Keep in which calls they wait: it is gone when all is stopped."""
        hang = self.folder / f"hang-{len(self.anomalies)}.txt"
        with hang.open("w") as out:
            faulthandler.dump_traceback(file=out, all_threads=True)
        self.blame(f"{phase}: {', '.join(late)} did not get on in {self._patience_s:.0f} s: {hang}")

    def _phase(self, name: str, act: Callable[[], None], *, outage: bool = False) -> None:
        began_s = time.monotonic()
        self.tell(name)
        act()
        self.phases.append(Phase(name, began_s, time.monotonic(), outage))

    def _settle(
        self, name: str, clients: DrillClients, act: Callable[[], None] | None = None
    ) -> None:
        """Wait until every client has got on since `act`."""
        began_s = time.monotonic()

        def settled() -> None:
            if act is not None:
                act()
            while late := clients.behind(began_s, SETTLED_COMMITS):
                if time.monotonic() - began_s > self._patience_s:
                    self._blame_hanging(name, late)
                    return
                time.sleep(0.05)
            time.sleep(SETTLE_S)

        self._phase(name, settled)
