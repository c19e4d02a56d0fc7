"""What writers of three clients tell (INV-WRJ1), where they rest, and what readers are shown (INV-SGT1)."""

import threading

from chaos.history import Attempt, Outcome, Seen
from chaos.writers.journal import Gate, WritersJournal
from chaos.writers.sightings import Sightings, judge_sightings


def test_INV_WRJ1_a_commit_belongs_to_the_term_of_its_answer_any_other_try_to_that_of_its_beginning() -> (
    None
):
    journal = WritersJournal()
    journal.next_term()
    for outcome in Outcome:
        journal.note(Attempt("java-0", 1, 0, 0, 1, 5, outcome))
    terms = {each.outcome: each.term for each in journal.attempts}
    assert terms == {Outcome.COMMITTED: 1, Outcome.NOT_COMMITTED: 0, Outcome.UNKNOWN: 0}
    assert len(journal.acked_now()["java-0"]) == 1


def test_errors_are_counted_by_client_and_name() -> None:
    journal = WritersJournal()
    for _ in range(2):
        journal.fail_of("java", "TimeoutException")
    assert journal.errors_now() == {"java TimeoutException": 2}


def test_who_rests_at_a_closed_gate_is_known_and_passes_once_it_is_open() -> None:
    gate = Gate()
    gate.arrive("a")
    assert gate.missing({"a"}, 0.0) == {"a"}, "it was open"
    gate.close()
    passing = threading.Thread(target=gate.pass_through, args=("b",))
    passing.start()
    assert gate.missing({"b"}, 30.0) == set()
    gate.open()
    passing.join()


def test_INV_SGT1_what_is_shown_twice_taken_back_or_never_shown_is_found() -> None:
    final = [Seen(0, offset, f"java-0.{offset}", 1) for offset in range(3)]
    assert judge_sightings("java", final, final) == []
    assert "or twice" in judge_sightings("java", [*final, final[0]], final)[0]
    assert "taken back" in judge_sightings("java", final, final[:2])[0]
    assert "never shown" in judge_sightings("java", final[:2], final)[0]


def test_a_reader_lacks_what_lies_behind_the_last_that_it_was_shown() -> None:
    sightings = Sightings()
    assert sightings.lacks({0: 0})
    sightings.note(0, 4, b"java-0.1 5")
    assert not sightings.lacks({0: 4})
    assert sightings.lacks({0: 5})
    assert sightings.shown() == [Seen(0, 4, "java-0.1", 5)]
