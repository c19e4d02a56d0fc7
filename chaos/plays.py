"""How each kind of round is played: what is killed, stopped, ordered, and when.

Not here: which rounds, in which order (`chaos.schedule`); mending and judging (`chaos.soak`).
"""

import time
from collections.abc import Callable
from typing import Final

from chaos.schedule import Kind
from chaos.soak_stage import SoakStage


def _primary_killed(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.kill(primary)
    time.sleep(gap_s)
    soak.fail_over(mirror)
    time.sleep(gap_s)


def _mirror_killed(soak: SoakStage, _primary: str, mirror: str, gap_s: float) -> None:
    soak.kill(mirror)
    time.sleep(gap_s)


def _primary_killed_briefly(soak: SoakStage, primary: str, _mirror: str, gap_s: float) -> None:
    soak.kill(primary)
    time.sleep(gap_s)


def _primary_paused(soak: SoakStage, primary: str, _mirror: str, gap_s: float) -> None:
    soak.pause(primary)
    time.sleep(gap_s)


def _mirror_paused(soak: SoakStage, _primary: str, mirror: str, gap_s: float) -> None:
    soak.pause(mirror)
    time.sleep(gap_s)


def _candidate_killed(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.kill(primary)
    for factor in (1.0, 0.5):
        soak.order("failover", mirror)
        time.sleep(0.05 + gap_s * factor)
        soak.kill(mirror)
        soak.start(mirror)
    soak.fail_over(mirror)


def _failover_alive(soak: SoakStage, _primary: str, mirror: str, _gap_s: float) -> None:
    soak.fail_over(mirror)


def _failover_paused(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.pause(primary)
    soak.fail_over(mirror)
    time.sleep(gap_s)
    soak.resume(primary)


def _switch(soak: SoakStage, _primary: str, mirror: str, _gap_s: float) -> None:
    soak.switch(mirror)


def _switch_twice(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.switch(mirror)
    time.sleep(gap_s)
    soak.mend()
    soak.switch(primary)


def _switch_candidate_killed(soak: SoakStage, _primary: str, mirror: str, gap_s: float) -> None:
    soak.order("switch", mirror)
    time.sleep(gap_s)
    soak.kill(mirror)


def _switch_primary_killed(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.order("switch", mirror)
    time.sleep(gap_s)
    soak.kill(primary)
    soak.fail_over(mirror)


def _failovers_in_a_row(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    for old, new in ((primary, mirror), (mirror, primary), (primary, mirror)):
        soak.kill(old)
        soak.fail_over(new)
        soak.start(old)
        soak.mend()
        time.sleep(gap_s)


def _both_killed(soak: SoakStage, primary: str, mirror: str, gap_s: float) -> None:
    soak.kill(primary)
    soak.kill(mirror)
    time.sleep(gap_s)


PLAYS: Final[dict[Kind, Callable[[SoakStage, str, str, float], None]]] = {
    Kind.PRIMARY_KILLED: _primary_killed,
    Kind.MIRROR_KILLED: _mirror_killed,
    Kind.PRIMARY_KILLED_BRIEFLY: _primary_killed_briefly,
    Kind.PRIMARY_PAUSED: _primary_paused,
    Kind.MIRROR_PAUSED: _mirror_paused,
    Kind.CANDIDATE_KILLED: _candidate_killed,
    Kind.FAILOVER_ALIVE: _failover_alive,
    Kind.FAILOVER_PAUSED: _failover_paused,
    Kind.SWITCH: _switch,
    Kind.SWITCH_TWICE: _switch_twice,
    Kind.SWITCH_CANDIDATE_KILLED: _switch_candidate_killed,
    Kind.SWITCH_PRIMARY_KILLED: _switch_primary_killed,
    Kind.FAILOVERS_IN_A_ROW: _failovers_in_a_row,
    Kind.BOTH_KILLED: _both_killed,
}
