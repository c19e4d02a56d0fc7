"""What happens in a seed has numbers, leaving some out changes no other, and a run that fails is made small by that."""

import shlex

import pytest

from chaos.checker import Kind as Fault
from idempotency.partition_state import PartitionState
from tests.simulation.swarm.life import Outcome
from tests.simulation.swarm.minimise import Minimiser, Run, kind_of
from tests.simulation.swarm.plan import Choice, Plan
from tests.simulation.swarm.rates import FAULTS, LASTING

pytestmark = pytest.mark.simulation
NAMES = ("eu", "us")


@pytest.mark.parametrize("only", [None, (), ("1", "3", "4", "5", "w1.2", "w2.10")])
@pytest.mark.parametrize("without", [frozenset(), frozenset({"kill", "power"})])
def test_a_choice_is_what_its_options_say(
    without: frozenset[str], only: tuple[str, ...] | None
) -> None:
    choice = Choice(without, only)
    said = dict(zip(*[iter(shlex.split(str(choice)))] * 2, strict=True))
    assert Choice.of(said.get("--without", ""), said.get("--actions")) == choice


def test_a_fault_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such faults"):
        Choice.of("kill,rain", None)


def test_INV_SWN1_what_is_left_out_changes_no_other() -> None:
    whole = Plan(7, NAMES)
    for left_out in (Choice(frozenset(FAULTS)), Choice(only=("2",))):
        less = Plan(7, NAMES, left_out)
        assert [less.action(n, "eu") for n in range(9)] == [whole.action(n, "eu") for n in range(9)]
        assert [less.disaster(n) for n in range(9)] == [whole.disaster(n) for n in range(9)]
        for ours, theirs, _ in zip(less.weather(2), whole.weather(2), range(9), strict=False):
            assert (ours.label, ours.kind, ours.gap_s) == (theirs.label, theirs.kind, theirs.gap_s)


def planted(run: Run) -> Outcome:
    """Return what a run comes to where two actions and late messages together are what fails."""
    labels = [*map(str, range(1, 41)), *(f"w1.{n}" for n in range(1, 21))]
    played = [(x, "kill", float(i)) for i, x in enumerate(labels) if run.choice.has(x, "kill")]
    wrong = {"5", "w1.17"} <= {x for x, _, _ in played} and "late" not in run.choice.without
    violations = (f"{Fault.TORN.name} {len(played)} of us",) if wrong else ()
    return Outcome("", 0, violations, 0.0, tuple(played))


def test_INV_SWX1_what_a_failure_needs_is_kept_and_all_else_goes() -> None:
    run = Run(1, 2.0, 2, Choice())
    small = Minimiser(run, planted(run), play=planted).smallest()
    assert small.choice == Choice(frozenset(LASTING) - {"late"}, ("5", "w1.17"))
    assert small.minutes < run.minutes
    assert kind_of(planted(small).violations[0]) == kind_of(planted(run).violations[0])


def test_INV_SWX2_no_more_runs_are_tried_than_was_said() -> None:
    run, tried = Run(1, 2.0, 2, Choice()), list[Run]()

    def counted(tries: Run) -> Outcome:
        tried.append(tries)
        return planted(tries)

    Minimiser(run, planted(run), tries=4, play=counted).smallest()
    assert len(tried) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("silence")
def test_INV_SWX1_the_command_of_a_mutant_shows_the_same_violation_with_fewer_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PartitionState, "last_stable_offset", lambda _self, bound: bound)
    run = Run(1, 0.1, 2, Choice())
    outcome = run.play()
    assert outcome.violations
    minimiser = Minimiser(run, outcome, tries=1)
    minimiser.smallest()
    assert kind_of(minimiser.outcome.violations[0]) == kind_of(outcome.violations[0])
    assert len(minimiser.outcome.played) < len(outcome.played)
