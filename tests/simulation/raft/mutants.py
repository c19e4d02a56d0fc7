"""``python -m tests.simulation.raft.mutants``: rules taken out of the core, one at a time, and what the lives show of it.

INV-RSM1  each mutant is noticed by the violation that is expected of it, within its seeds; its edits apply
"""

import re
import sys
from dataclasses import dataclass
from typing import Final

import click

from tests.simulation.mutants.patch import DoesNotApply, Edit, edited
from tests.simulation.raft.plan import (
    Bent,
    as_drawn,
    changing_voters,
    late_pieces,
    old_answers,
    stale_tails,
)
from tests.simulation.raft.play import play

RAFT: Final = "region_broker.controller.raft."
SEEDS_MAX: Final = 3_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """`audit`: the finding in stock raftos that it brings back, if one; `expected`: a pattern of the violation."""

    name: str
    audit: str
    expected: str
    edits: tuple[Edit, ...]
    bent: Bent
    rare: bool
    """It takes hundreds of lives to show."""


def noticed(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Return the first seed that shows something, and what; ("", after the last) if none does; raises DoesNotApply."""
    with edited(mutant.edits):
        for seed in range(1, seeds_max + 1):
            if violation := play(seed, bent=mutant.bent).violation:
                return seed, violation
    return seeds_max, ""


def _mutant(
    name: str,
    audit: str,
    expected: str,
    *edits: tuple[str, str, str],
    bent: Bent = as_drawn,
    rare: bool = False,
) -> Mutant:
    made = tuple(Edit(RAFT + where, old, new) for where, old, new in edits)
    return Mutant(name, audit, expected, made, bent, rare)


_ONE_VOTE: Final = (
    "member_state:MemberState.enter_term",
    "assert self.hard.voted_for in {None, voted_for}, (term, self.hard, voted_for)",
    "pass",
)
_KEPT_END: Final = (
    "member_state:MemberState.take_entries",
    'assert cut_behind >= self.commit_index, "INV-RFS3: what is committed stays"',
    "pass",
)

MUTANTS: Final = (
    _mutant(
        "a-vote-is-not-durable", "S1", "INV-RSJ(1.*may forget|2.*by 0 votes)",
        (
            "member_state:MemberState.enter_term",
            "self.effects.append(Persist(wanted, None, ()))",
            "self.effects.append(Persist(HardState(term), None, ()))",
        ),
    ),
    _mutant(
        "a-second-vote-in-a-term", "S1", "INV-RSJ1.*votes twice",
        _ONE_VOTE,
        (
            "elections:Elections.vote",
            "state.hard.voted_for not in {None, sender} or not",
            "not",
        ),
    ),
    _mutant(
        "a-new-term-keeps-the-old-vote", "S2", "INV-RSJ10.*no rest",
        ("core:RaftCore._adopt", "enter_term(term, None)", "enter_term(term, self._state.hard.voted_for)"),
    ),
    _mutant(
        "a-term-is-not-durable", "S12", "INV-RSJ1.*too early",
        (
            "member_state:MemberState.enter_term",
            "self.effects.append(Persist(wanted, None, ()))",
            "self.effects.extend([Persist(wanted, None, ())] if voted_for else [])",
        ),
    ),
    _mutant(
        "votes-are-counted-not-voters", "S3", "INV-RSJ2",
        ("elections:Elections.take_answer", "self._granted.add(sender)", "self._granted.add((sender, len(self._granted)))"),
        (
            "elections:Elections._is_elected",
            "is_majority(self._granted, self._state.log.membership.voters)",
            "len(self._granted) > len(self._state.log.membership.voters) // 2",
        ),
    ),
    _mutant(
        "votes-of-former-terms-count", "S3", "INV-RSJ2",
        (
            "elections:Elections.take_answer",
            "(answer.pre, answer.term) != (self._pre, asked_term)",
            "answer.pre != self._pre",
        ),
    ),
    _mutant(
        "a-word-beforehand-is-a-vote", "", "INV-RSJ2",
        (
            "elections:Elections.take_answer",
            "(answer.pre, answer.term) != (self._pre, asked_term)",
            "answer.term != asked_term",
        ),
    ),
    _mutant(
        "learners-are-asked-and-counted", "S3", "INV-RSJ[237]",
        (
            "elections:Elections._ask",
            "for voter in state.log.membership.voters:",
            "for voter in (*state.log.membership.voters, *state.log.membership.learners):",
        ),
        (
            "elections:Elections._is_elected",
            "is_majority(self._granted, self._state.log.membership.voters)",
            "len(self._granted) > len(self._state.log.membership.voters) // 2",
        ),
    ),
    _mutant(
        "answers-of-former-terms-count", "S4", "INV-RSJ(3|11)",
        ("core:RaftCore._take_from_follower", "or answer.term < self._state.term", "or False"),
        bent=old_answers,
        rare=True,
    ),
    _mutant(
        "every-end-is-cut-off", "S6", "INV-RSJ(7.*cuts off what it applied|11)",
        _KEPT_END,
        ("following:Following._append", "if known == entry.term:", "if False:"),
    ),
    _mutant(
        "half-is-a-majority", "S7", "INV-RSJ[23]",
        ("memberships:majority_of", "count // 2 + 1", "max(1, count // 2)"),
    ),
    _mutant(
        "the-cluster-is-counted-without-oneself", "S7", "INV-RSJ[23]",
        ("memberships:majority_of", "count // 2 + 1", "max(1, (count - 1) // 2 + 1)"),
    ),
    _mutant(
        "no-entry-at-a-terms-start", "S8", "INV-RSJ10",
        ("leading:Leading.begin", 'self._append(EntryKind.LEADER, b"")', "pass"),
    ),
    _mutant(
        "entries-of-former-terms-are-counted", "S8", "INV-RSJ7",
        (
            "leading:Leading._count",
            "or state.log.term_at(index) != state.term",
            "or False",
        ),
        bent=stale_tails,
        rare=True,
    ),
    _mutant(
        "a-commit-answers-the-next-caller", "S10", "INV-RSJ9.*before it is applied",
        ("leading:Leading._count", "self._waiting[0][1] <= index:", "self._waiting[0][1] <= index + 1:"),
    ),
    _mutant(
        "callers-of-a-deposed-leader-hang", "S10", "INV-RSJ10",
        ("leading:Leading.resign", "state.answer(ticket, Outcome.LOST, index)", "pass"),
    ),
    _mutant(
        "reads-ask-nobody", "S11", "INV-RSJ8",
        (
            "leading:Leading.read",
            "self._reads.ask(ticket, max(state.commit_index, self._first_index), self._newest_beat)",
            "self._reads.ask(ticket, max(state.commit_index, self._first_index), -1)",
        ),
    ),
    _mutant(
        "reads-before-an-entry-of-the-term", "S11", "INV-RSJ8",
        (
            "leading:Leading.read",
            "max(state.commit_index, self._first_index)",
            "state.commit_index",
        ),
    ),
    _mutant(
        "reads-share-the-round-on-its-way", "S11", "INV-RSJ8",
        ("reads:Reads.ask", "newest_beat + 1", "newest_beat"),
    ),
    _mutant(
        "entries-are-not-durable", "S12", "INV-RSJ(3|5|7|11)",
        (
            "member_state:MemberState.take_entries",
            "self.effects.append(Persist(None, cut_behind, entries))",
            "self.effects.append(Persist(None, cut_behind, ()))",
        ),
    ),
    _mutant(
        "a-leader-counts-what-it-has-not-written", "S12", "INV-RSJ3",
        (
            "leading:Leading._append",
            "state.effects.append(Persist(None, None, (entry,)))\n    self._count()",
            "self._count()\n    state.effects.append(Persist(None, None, (entry,)))",
        ),
    ),
    _mutant(
        "a-deposed-leader-goes-on-sending", "S13", "INV-R",
        ("core:RaftCore._step_down", "self._leading = None", "pass"),
    ),
    _mutant(
        "a-follower-commits-its-own-end", "S16", "INV-RSJ[37]",
        (
            "following:Following.take_entries",
            "min(request.commit_index, matched)",
            "min(request.commit_index, state.log.last_index)",
        ),
    ),
    _mutant(
        "a-follower-reports-its-own-end", "S16", "INV-RSJ[37]",
        (
            "following:Following.take_entries",
            "matched = LogIndex(request.previous_index + len(request.entries))",
            "matched = state.log.last_index",
        ),
    ),
    _mutant(
        "a-lone-voter-waits-for-others", "S25", "INV-RSJ10",
        ("elections:Elections._ask", "if self._is_elected():", "if False:"),
    ),
    _mutant(
        "a-vote-for-whoever-asks", "", "INV-RSJ7.*without the committed entry",
        (
            "elections:Elections._is_up_to_date",
            "(request.last_term, request.last_index) >= (log.last_term, log.last_index)",
            "True",
        ),
    ),
    _mutant(
        "the-longer-log-wins", "", "INV-RSJ7.*without the committed entry",
        (
            "elections:Elections._is_up_to_date",
            "(request.last_term, request.last_index) >= (log.last_term, log.last_index)",
            "request.last_index >= log.last_index",
        ),
        rare=True,
    ),
    _mutant(
        "requests-of-former-leaders-are-taken", "S4", "INV-R",
        (
            "core:RaftCore._take_from_leader",
            "is_former = request.term < self._state.term",
            "is_former = False",
        ),
    ),
    _mutant(
        "a-leader-is-deaf-to-higher-terms", "", "INV-RSJ10",
        ("core:RaftCore._take_from_follower", "self._adopt(answer.term)", "pass"),
    ),
    _mutant(
        "two-memberships-at-once",
        "S26",
        "INV-RSJ11.*behind one that is not committed",
        (
            "leading:Leading.change_membership",
            "max(state.log.membership_index, self._first_index)",
            "self._first_index",
        ),
    ),
    _mutant(
        "a-membership-before-an-entry-of-the-term", "S26", "INV-RSJ11",
        (
            "leading:Leading.change_membership",
            "max(state.log.membership_index, self._first_index)",
            "state.log.membership_index",
        ),
    ),
    _mutant(
        "a-membership-of-two-steps", "S26", "INV-RSJ[237]",
        ("leading:Leading._is_allowed", "if not is_one_step(present, wanted):", "if not wanted.voters:"),
        bent=changing_voters,
        rare=True,
    ),
    _mutant(
        "a-cut-off-membership-stays-in-force", "S26", "INV-R",
        ("memberships:MembershipHistory.cut_behind", "del self._indexes[place:], self._memberships[place:]", "pass"),
    ),
    _mutant(
        "a-leader-without-a-vote-counts-itself", "S26", "INV-RSJ3",
        (
            "leading:Leading._count",
            "reached_by_majority(reached, state.log.membership.voters)",
            "reached_by_majority(reached, tuple({*state.log.membership.voters, state.me}))",
        ),
    ),
    _mutant(
        "a-removed-leader-goes-on", "S26", "INV-RSJ10",
        ("core:RaftCore.step", "self._leading.is_removed", "False"),
    ),
    _mutant(
        "who-is-removed-asks-no-more-before-it-is-committed", "", "INV-RSJ10",
        (
            "elections:Elections.may_campaign",
            "self._state.log.may_vote(self._state.me, self._state.commit_index)",
            "self._state.is_voter",
        ),
    ),
    _mutant(
        "an-older-snapshot-is-taken", "S26", "INV-R",
        ("following:Following.take_piece", "if self._has_all_of(point):", "if False:"),
        bent=late_pieces,
    ),
    _mutant(
        "a-snapshot-of-two-leaders", "S26", "pieces come in order|INV-RSJ7",
        (
            "following:Following._install_for",
            "if install.point == request.point:",
            "if True:",
        ),
    ),
    _mutant(
        "a-lost-piece-stays-lost", "S26", "INV-RSJ10",
        (
            "leading:Leading._heartbeat",
            "self._send_piece(member, progress, progress.snapshot_position)",
            "pass",
        ),
    ),
    _mutant(
        "a-snapshot-says-what-is-not-committed", "S26", "INV-R",
        ("core:RaftCore.point_at", "state.log.membership_at(index)", "state.log.membership"),
    ),
    _mutant(
        "what-arrived-stays-in-flight", "", "INV-RSJ10",
        ("progress:Progress.taken_up_to", "while self.in_flight and", "while False and"),
    ),
    _mutant(
        "a-refusal-says-nothing", "", "INV-RSJ10",
        ("leading:Leading.take_answer", "progress.refused(log.last_not_above(answer.hint_index, answer.hint_term)[0])", "pass"),
    ),
)  # fmt: skip


@click.command()
@click.option("--only", default="", help="Mutants whose name contains it.")
@click.option("--seeds", default=SEEDS_MAX, show_default=True, help="At most so many of each.")
def main(only: str, seeds: int) -> None:
    """Play each mutant until something shows.

    Example: python -m tests.simulation.raft.mutants --only vote
    """
    failed: list[str] = []
    for mutant in (each for each in MUTANTS if only in each.name):
        try:
            seed, violation = noticed(mutant, seeds)
        except DoesNotApply as error:
            seed, violation = 0, f"DOES NOT APPLY: {error}"
        except Exception as error:  # noqa: BLE001 - whatever it is, this mutant only crashes, and the next one is played
            seed, violation = 0, f"CRASHED: {error!r}"
        caught = re.search(mutant.expected, violation) is not None
        failed += [] if caught else [mutant.name]
        word = "" if caught else "NOT AS EXPECTED, "
        click.echo(f"{mutant.name} {mutant.audit}: {word}seed {seed}, {violation or 'nothing'}")
    click.echo(f"not as they should be: {failed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
