"""Rules taken out of the cores, one at a time, and what the lives show of it.

INV-RPM1  each mutant is noticed by the violation that is expected of it, within its seeds; its edits apply, and its lives are clean
          without them
"""

import re
from dataclasses import dataclass
from typing import Final

from tests.simulation.mutants.patch import Edit, edited
from tests.simulation.replication.play import WEIGHTS, play

ROOM: Final = "region_broker.replication."
SEEDS_MAX: Final = 1_500


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule`: what the edits take out; `expected`: a pattern of the violation."""

    name: str
    rule: str
    expected: str
    edits: tuple[Edit, ...]
    bent: dict[str, float]
    """What happens more often, or not at all, in the lives that it is played in."""
    since: int = 1
    """The first of these lives."""


def noticed(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Return the first seed that shows what is expected, and what; ("", after the last) if none does. Raises DoesNotApply.

    What shows first is not always what is expected: a rule that is missing may break several things.
    """
    with edited(mutant.edits):
        for seed in range(mutant.since, mutant.since + seeds_max):
            violation = play(seed, {**WEIGHTS, **mutant.bent}).violation
            if re.search(mutant.expected, violation):
                return seed, violation
    return seeds_max, ""


def _mutant(
    name: str,
    rule: str,
    expected: str,
    *edits: tuple[str, str, str],
    bent: dict[str, float] | None = None,
    since: int = 1,
) -> Mutant:
    made = tuple(
        Edit(where if where.startswith("tests.") else ROOM + where, old, new)
        for where, old, new in edits
    )
    return Mutant(name, rule, expected, made, bent or {}, since)


MUTANTS: Final = (
    _mutant(
        "hw-counts-the-committed-set-alone", "R2, INV-RPL1", "INV-RPJ1",
        (
            "leading:LeadingCore._count_anew",
            "maximal = self._in_sync.members | proposed | self._doubtful",
            "maximal = self._in_sync.members",
        ),
    ),
    _mutant(
        "a-proposal-of-unknown-outcome-is-forgotten", "R2, INV-RPL1", "INV-RPJ1",
        (
            "leading:LeadingCore._proposal_ended",
            "self._doubtful |= pending.members",
            "pass",
        ),
    ),
    _mutant(
        "the-leaders-own-disk-does-not-count", "R8, INV-RPL1", "INV-RPJ1: its leader",
        (
            "leading:LeadingCore._advance",
            "end = log.durable_end\n",
            "end = min((f.durable_ends.get(key, 0) for f in self._counted), default=log.durable_end)\n",
        ),
    ),
    _mutant(
        "one-slow-member-is-enough", "R2, INV-RPL1", "INV-RPJ1",
        (
            "leading:LeadingCore._advance",
            "end = min(end, follower.durable_ends.get(key, 0))",
            "end = min(end, max(f.durable_ends.get(key, 0) for f in self._counted))",
        ),
    ),
    _mutant(
        "hw-is-what-the-set-has-now", "INV-RPL2", "INV-RPJ2",
        (
            "leading:LeadingCore._advance",
            "if end > log.high_watermark:",
            "if end != log.high_watermark:",
        ),
    ),
    _mutant(
        "hw-moves-below-min-in-sync", "R2, INV-RPL3", "INV-RPJ5",
        (
            "leading:LeadingCore._advance",
            "if len(self._in_sync.members) < log.min_in_sync:",
            "if False:",
        ),
    ),
    _mutant(
        "hw-moves-below-min-in-sync-beyond-what-was-left", "INV-RPL14", "INV-RPJ5",
        ("leading:LeadingCore._older_end", "return log.older_end", "return log.durable_end"),
    ),
    _mutant(
        "taken-in-without-what-is-committed", "R3, INV-RPL4", "INV-RPJ1",
        (
            "progress:FollowerProgress.has_enough",
            "return self.is_heard and not self._short and not self._late_starts",
            "return self.is_heard and not self._late_starts",
        ),
        ("progress:FollowerProgress.lags", "return self.caught_up_ms is None or", "return self.caught_up_ms is not None and"),
    ),
    _mutant(
        "a-deletion-is-acknowledged-by-the-leader-alone", "INV-RPL11", "INV-RPJ10",
        ("leading:LeadingCore._advance_start", "start = follower.start_of(key, start)", "pass"),
    ),
    _mutant(
        "taken-in-below-the-log-start-of-the-leader", "INV-RPL11", "INV-RPJ10",
        (
            "progress:FollowerProgress.has_enough",
            "return self.is_heard and not self._short and not self._late_starts",
            "return self.is_heard and not self._short",
        ),
    ),
    _mutant(
        "a-log-start-is-reported-before-it-is-durable", "INV-RPF8", "INV-RPJ10",
        (
            "following:FollowingCore._fetched",
            "self._effects.append(LogStart(part.key, part.log_start_offset))",
            "self._starts_to_report[part.key] = 1 << 40; self._effects.append(LogStart(part.key, part.log_start_offset))",
        ),
    ),
    _mutant(
        "taken-in-below-the-start-of-the-leader-epoch", "R3, INV-RPL4", "INV-RPJ1",
        (
            "progress:LeaderLogState.joins_at",
            "return max(self.high_watermark, self.epoch_start_offset)",
            "return self.high_watermark",
        ),
        ("progress:FollowerProgress.lags", "return self.caught_up_ms is None or", "return self.caught_up_ms is not None and"),
    ),
    _mutant(
        "taken-in-for-one-log-at-a-time", "INV-RPL8", "INV-RPJ1",
        (
            "progress:FollowerProgress.report",
            "self._short.discard(key)",
            "self._short.clear()",
        ),
        ("progress:FollowerProgress.lags", "return self.caught_up_ms is None or", "return self.caught_up_ms is not None and"),
    ),
    _mutant(
        "taken-in-while-a-log-has-stopped", "INV-RPL9", "INV-RPJ1",
        (
            "leading:LeadingCore._is_wanted",
            "if any(member not in had for had in self._stopped.values()):",
            "if False:",
        ),
        bent={"stop": 3, "delete": 0, "wind back": 0},
    ),
    _mutant(
        "reports-of-other-sessions-count", "R4, INV-RPL5", "INV-RPJ1",
        (
            "leading:LeadingCore._follower",
            "elif follower is None or event.session != follower.session or follower.is_lost:",
            "elif follower is None:",
        ),
        (
            "leading:LeadingCore._follower",
            "if event.leader_epoch != self._leader_epoch or event.member == self._me:",
            "if event.member == self._me:",
        ),
        bent={"repeat": 60, "wind back": 10, "crash": 4, "start": 15, "elect": 0.5},
    ),
    _mutant(
        "a-session-goes-on-where-the-last-one-ended", "R8, INV-RPP1", "INV-RPJ1",
        (
            "progress:FollowerProgress.begin",
            "self._former_ends, self.durable_ends = self.durable_ends, {}",
            "pass",
        ),
        (
            "progress:FollowerProgress.begin",
            "self._short = {key for key, log in logs.items() if log.joins_at > 0}",
            "self._short = {key for key, log in logs.items() if log.joins_at > self.durable_ends.get(key, 0)}",
        ),
        bent={"wind back": 20, "crash": 5, "start": 5, "propose": 25, "learn": 30, "elect": 0.2, "empty": 0, "delete": 0},
        since=740,
    ),
    _mutant(
        "a-deposed-leader-goes-on", "R4, INV-RPL6", "INV-RPJ4",
        ("leading:LeadingCore._seen", "self._is_deposed = True", "pass"),
        ("leading:LeadingCore._seen", "self._effects = [Deposed(leader_epoch)]", "pass"),
    ),
    _mutant(
        "latest-is-known-at-once", "R6", "INV-RPJ6",
        (
            "leading:LeadingCore.knows_latest",
            "return log.high_watermark >= log.epoch_start_offset",
            "return True",
        ),
    ),
    _mutant(
        "nobody-is-taken-out", "INV-RPL8", "INV-RPJ8",
        (
            "leading:LeadingCore._is_wanted",
            "if not self._may_stay(follower, now_ms):",
            "if member not in self._in_sync.members and not self._may_stay(follower, now_ms):",
        ),
    ),
    _mutant(
        "nobody-is-taken-in", "R3", "INV-RPJ8",
        (
            "leading:LeadingCore._is_wanted",
            "if not follower.has_enough:",
            "if True:",
        ),
    ),
    _mutant(
        "a-refused-proposal-is-waited-for", "INV-RPL7", "INV-RPJ8",
        ("leading:LeadingCore._proposal_ended", "self._pending = None", "pass"),
    ),
    _mutant(
        "doubt-about-a-lost-member-is-kept", "INV-RPL7", "INV-RPJ8",
        (
            "leading:LeadingCore._propose",
            "if wanted == members and self._doubtful <= wanted:",
            "if wanted == members:",
        ),
        bent={"doubt": 60, "propose": 5, "break": 6, "crash": 0.5, "elect": 0.2, "empty":0},
        since=740,
    ),
    _mutant(
        "what-is-written-is-reported", "R8, INV-RPF4", "INV-RPJ1",
        (
            "following:FollowingCore._fetched",
            "log.position = part.end_offset",
            "log.position = part.end_offset; self._to_report[part.key] = part.end_offset",
        ),
    ),
    _mutant(
        "histories-are-not-compared", "R5, INV-RPF1", "INV-RPJ1",
        (
            "following:FollowingCore._checked",
            "found = log.compared(log.history, answer)",
            "found = type('Meeting', (), {'offset': log.position})()",
        ),
    ),
    _mutant(
        "logs-are-cut-at-hw", "R5, KIP-101", "INV-RPJ[13]",
        (
            "facts:compare",
            "return MeetAt(min(mine.end_offset, leaders.end_offset))",
            "return MeetAt(own.end_offset)",
        ),
    ),
    _mutant(
        "the-leaders-end-alone-counts", "R5, KIP-279", "assertion|INV-RPJ",
        (
            "facts:compare",
            "min(mine.end_offset, leaders.end_offset)",
            "min(own.end_offset, leaders.end_offset)",
        ),
    ),
    _mutant(
        "histories-are-asked-about-once", "R5, KIP-279", "INV-RPJ[13]",
        (
            "facts:compare",
            "return AskAgain(mine.leader_epoch)",
            "return MeetAt(max(own.log_start_offset, min(leaders.end_offset, own.end_offset)))",
        ),
        bent={"message": 60, "learn": 40, "produce": 40, "sync": 40, "elect": 10},
    ),
    _mutant(
        "a-cut-log-reports-what-it-had", "R8, INV-RPF4", "INV-RPJ|assertion",
        (
            "following:FollowingCore._meet",
            "log.position = log.durable_end = meets_at",
            "log.position = meets_at",
        ),
    ),
    _mutant(
        "logs-report-before-they-were-compared", "R5, INV-RPF1", "INV-RPJ",
        (
            "following:FollowingCore._durable",
            "if log.stage is Stage.COPIED:",
            "if True:",
        ),
        (
            "following:FollowingCore._send",
            "if not self._is_connected or (self._in_flight == 0 and self._waits_for_histories()):",
            "if not self._is_connected:",
        ),
        bent={"elect": 5, "produce": 30, "sync": 60},
    ),
    _mutant(
        "what-the-leader-has-deleted-is-asked-for", "INV-RPF1", "INV-RPJ8",
        (
            "following:FollowingCore._meet",
            "if meets_at < leaders_start or",
            "if False or",
        ),
    ),
    _mutant(
        "a-follower-shows-the-leaders-hw", "INV-RPF7", "INV-RPJ3|assertion",
        (
            "following:FollowingCore._show",
            "min(log.leaders_high_watermark, log.durable_end)",
            "log.leaders_high_watermark",
        ),
    ),
    _mutant(
        "answers-of-former-sessions-are-taken", "R4, INV-RPF3", "assertion|INV-RPJ",
        (
            "following:FollowingCore.step",
            "if event.session == self._session and self._leader and self._retry_at_ms is None:",
            "if self._leader and self._retry_at_ms is None and (self._is_connected or event.session == self._session):",
        ),
    ),
    _mutant(
        "whoever-is-alive-may-lead", "R7", "INV-RPJ",
        ("tests.simulation.replication.choosing:choose", "able = in_sync & alive", "able = alive"),
    ),
    _mutant(
        "a-node-is-taken-for-its-folder", "R3", "INV-RPJ",
        (
            "tests.simulation.replication.choosing:choose",
            "able = in_sync & alive",
            "able = {each for each in alive if each.node_id in {member.node_id for member in in_sync}}",
        ),
    ),
    _mutant(
        "older-metadata-are-followed", "R4, INV-RPF5", "INV-RPJ|assertion",
        (
            "following:FollowingCore._follow",
            "if event.leader_epoch <= self._leader_epoch:",
            "if event.leader_epoch < self._leader_epoch - 1:",
        ),
    ),
    _mutant(
        "a-leader-that-started-again-goes-on-in-its-epoch", "R4, the contract of the room, 3", "INV-RPJ[13]",
        (
            "tests.simulation.replication.world:Node.start",
            "self.epoch_at_start = self.world.register.leader_epoch",
            "self.epoch_at_start = self.led_epoch = LeaderEpoch(-1)",
        ),
        ("tests.simulation.replication.judge:Judge.leads", "if leader_epoch in self._leaders:", "if False:"),
        bent={"crash": 5, "start": 20, "elect": 0.3, "produce": 30},
    ),
    _mutant(
        "a-deposed-leader-remembers-an-epoch-without-a-record", "R5, INV-E3", "INV-RPJ",
        ("tests.simulation.replication.world:Node.learn", "log.epochs.truncate_end(log.end)", "pass"),
        bent={"elect": 6, "learn": 40},
    ),
)  # fmt: skip
