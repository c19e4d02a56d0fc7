"""One drill of regions: rounds of failovers and of pairs of faults under transactions, each read back and judged.

Not here: writers (`chaos.writers`), sums (`figures`), what is wrong (`judge`).
"""

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaException

from chaos.access.doors import SEALED
from chaos.access.guard import Guard
from chaos.history import Seen, seen
from chaos.nodes.clients import writers_write
from chaos.nodes.figures import longest_pause_s
from chaos.nodes.plan import Fault
from chaos.readers import read_all
from chaos.regions.figures import Played
from chaos.regions.judge import Told, Verdict, judged
from chaos.regions.plan import Blow, Kind, Round
from chaos.regions.stage import NODES, REGIONS, RegionsStage
from chaos.transfers import ACCOUNTS
from chaos.writers.fleet import Fleet
from chaos.writers.writer import TOPIC
from region_broker.workbench import stage
from region_broker.workbench.node_http import ApiError

DOWN_S: Final = 2.0
"""For how long a killed node is left dead in a pair of faults."""
PAUSED_S: Final = 4.0
PATIENCE_S: Final = 90.0
SHOWN_S: Final = 30.0
"""How long a mirror may take to show what it has copied, while nobody writes."""
_LOOK_S: Final = 0.05
_AGAIN_S: Final = 0.5


class RegionsDrill:
    """The stage, its writers, and what was played; `acting` is who takes writes when all is well."""

    def __init__(self, stage_: RegionsStage, fleet: Fleet, guard: Guard | None = None) -> None:
        """Nothing is started. `guard`: of a stage behind doors."""
        self.stage = stage_
        self.guard = guard
        self.fleet = fleet
        self.played: list[Played] = []
        self.verdict = Verdict()
        self.switches = 0
        self.acting, self.mirror = REGIONS
        self._epochs: dict[int, int] = {}
        self._planned: set[int] = set()

    def set_up(self) -> None:
        """Start nodes, topic and writers."""
        began_s = time.monotonic()
        self.stage.start()
        bootstrap = self.stage.cluster.place(self.acting).bootstrap
        if self.guard is not None:
            self.guard.prepare(bootstrap, writers_write(), NODES)
        self.fleet.prepare(bootstrap, NODES, SEALED if self.guard is not None else {})
        self.stage.wait_whole(self.acting, self.mirror)
        self.stage.tell(
            f"two regions of three nodes in sync after {time.monotonic() - began_s:.1f} s"
        )
        self.fleet.start()
        if self.guard is not None:
            self.guard.start(bootstrap)
        self._await_progress(time.monotonic(), "at the start")

    def play(self, rounds: Iterable[Round], minutes: float | None = None) -> None:
        """Play each round and judge it; end early where something is wrong, or after so many minutes."""
        until_s = math.inf if minutes is None else time.monotonic() + 60 * minutes
        for each in rounds:
            if time.monotonic() > until_s:
                self.stage.tell(f"{minutes:g} minutes are over")
                return
            self._play(each)
            if each.switch and not self.stage.anomalies:
                self._switch()
            self._audit(each.number)
            if self.stage.anomalies:
                return

    def tear_down(self) -> None:
        """Stop writers and nodes."""
        self.stage.mend_all()
        if self.guard is not None:
            self.guard.stop()
        left = self.fleet.stop()
        if left:
            self.stage.tell(f"never let go by their clients: {', '.join(left)}")
        self.stage.close()

    def _play(self, each: Round) -> None:
        errors = self.fleet.journal.errors_now()
        time.sleep(each.load_s)
        began_s = time.monotonic()
        acting_after_s: float | None = None
        lost_s = began_s
        if each.kind is Kind.FAILOVER:
            lost_s, acting_after_s = self._fail_over(each)
        else:
            self._hurt_both(each)
        back_s = time.monotonic()
        self.stage.mend_all()
        self.stage.start_missing()
        self.stage.wait_whole(self.acting, self.mirror)
        whole_s = time.monotonic()
        self._await_progress(whole_s, f"after round {each.number}")
        self._note(Played(
            each.number, each.kind.name.lower(), str(each), acting_after_s,
            self._first_commit_s(lost_s) if acting_after_s is not None else None,
            longest_pause_s(self._commits_s(), began_s, time.monotonic()), whole_s - back_s,
            self.fleet.journal.errors_now() - errors,
        ))  # fmt: skip

    def _note(self, played: Played) -> None:
        self.played.append(played)
        after_s = played.acting_after_s
        acted = "" if after_s is None else f"{self.acting} acted after {after_s:.2f} s; "
        self.stage.tell(
            f"round {played.number}: {played.what}: {acted}longest pause {played.pause_s:.2f} s; whole"
            f" {played.whole_after_s:.1f} s after their return; errors {dict(played.errors)}"
        )

    def _hurt(self, region: str, blow: Blow | None) -> None:
        if blow is not None:
            self.stage.hurt(self.stage.node_of(region, blow.role), blow.fault)

    def _hurt_both(self, each: Round) -> None:
        """Hurt a node on either side at once, and leave it at that for a while."""
        meant = [
            (self.stage.node_of(region, blow.role), blow.fault)
            for region, blow in ((self.acting, each.acting), (self.mirror, each.mirror))
            if blow is not None
        ]
        for name, fault in meant:
            self.stage.hurt(name, fault)
        time.sleep(PAUSED_S if any(fault is Fault.PAUSE for _, fault in meant) else DOWN_S)
        self.stage.resume_all()
        if self.stage.lasts:
            self._await_progress(time.monotonic(), f"round {each.number}, while it lasts")

    def _fail_over(self, each: Round) -> tuple[float, float]:
        """Play it; return when the primary region was gone, and after how long the other one acted."""
        self._hurt(self.acting, each.acting)
        self._hurt(self.mirror, each.mirror)
        self._await_progress(time.monotonic(), f"round {each.number}, a node dead on either side")
        time.sleep(each.load_s)
        runner = self.stage.leads(self.mirror)
        self.stage.kill_region(self.acting)
        lost_s = time.monotonic()
        self.stage.leads(self.mirror)
        self.acting, self.mirror = self.mirror, self.acting
        ended_term = self.fleet.journal.term
        self.fleet.journal.next_term()
        self._move_guard(lost=True)
        self.stage.order_by(each.way, self.acting)
        if each.runner_dies:
            self.stage.hurt(runner, Fault.KILL)
        self.stage.wait_acting("failover", self.acting)
        after_s = time.monotonic() - lost_s
        self._epochs[self._epoch()] = ended_term
        return lost_s, after_s

    def _switch(self) -> None:
        """Let the mirror act, planned."""
        began_s, errors = time.monotonic(), self.fleet.journal.errors_now()
        self.acting, self.mirror = self.mirror, self.acting
        self.stage.give("switch", self.acting)
        self._move_guard(lost=False)
        self.stage.wait_acting("switch", self.acting)
        after_s = time.monotonic() - began_s
        self._planned.add(self._epoch())
        self.switches += 1
        self.stage.wait_whole(self.acting, self.mirror)
        self._await_progress(time.monotonic(), "after a switch")
        pause_s = longest_pause_s(self._commits_s(), began_s, time.monotonic())
        met = dict(self.fleet.journal.errors_now() - errors)
        self.stage.tell(
            f"  switched to {self.acting} in {after_s:.2f} s: longest pause {pause_s:.2f} s; errors {met}"
        )

    def _move_guard(self, *, lost: bool) -> None:
        if self.guard is not None:
            self.guard.changer.move(self.stage.cluster.place(self.acting).bootstrap, lost=lost)

    def _epoch(self) -> int:
        view = self.stage.view_of_leader(self.acting)
        if view is None:
            raise stage.StageError(f"{self.acting} has acted, and nobody leads it now")
        return int(view["region_epoch"])

    def _commits_s(self) -> list[float]:
        return sorted(at for times in self.fleet.journal.acked_now().values() for at in times)

    def _first_commit_s(self, lost_s: float) -> float | None:
        return next((at - lost_s for at in self._commits_s() if at > lost_s), None)

    def _await_progress(self, since_s: float, when: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while late := self.fleet.behind(since_s):
            if time.monotonic() > deadline_s:
                self.stage.blame(f"{when}: {', '.join(late)} did not get on: {self.stage.state()}")
                return
            time.sleep(_LOOK_S)

    def _audit(self, number: int) -> None:
        """Let all rest, read both regions, and judge."""
        if self.guard is not None and not self.guard.rest():
            return
        if late := self.fleet.rest(PATIENCE_S):
            self.stage.blame(
                f"round {number}: {', '.join(sorted(late))} did not end its transaction"
            )
            return
        try:
            stage.wait_mirrored(self.stage.cluster, self.acting, self.mirror, PATIENCE_S)
            final = self._read_both()
            losses = self.stage.losses()
        except (stage.StageError, ApiError, KafkaException, OSError) as error:
            self.stage.blame(f"round {number}: what was written could not be read back: {error!r}")
            return
        journal = self.fleet.journal
        self.verdict = judged(Told(
            journal.attempts, journal.places, final, losses, self._epochs, frozenset(self._planned)
        ))  # fmt: skip
        for each in self.verdict.wrong:
            self.stage.blame(f"round {number}: {each}")
        told = Counter(self.verdict.counts)
        self.stage.tell(
            f"  {len(final[self.acting])} records in either region, torn {told['TORN']}, doubled {told['DUPLICATE']}, out of order"
            f" {told['OUT_OF_ORDER']}, lost {self.verdict.gone}, listed {self.verdict.listed}"
        )
        if self.guard is not None:
            self.guard.audit(number, self.acting, self.mirror)
            self.guard.renew(number, acting=self.acting, mirror=self.mirror)
        self.fleet.go_on()

    def _read_both(self) -> dict[str, list[Seen]]:
        """Return what either region shows; the mirror shows the last of it at a tidemark that is still to come."""
        acting, deadline_s = self._read(self.acting), time.monotonic() + SHOWN_S
        while (mirrored := self._read(self.mirror)) != acting and time.monotonic() < deadline_s:
            time.sleep(_AGAIN_S)
        return {self.acting: acting, self.mirror: mirrored}

    def _read(self, region: str) -> list[Seen]:
        bootstrap = self.stage.cluster.place(region).bootstrap
        found = read_all(bootstrap, {TOPIC: ACCOUNTS})
        return sorted(seen(each.partition, each.offset, each.value) for each in found)
