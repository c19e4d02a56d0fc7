"""What a leader sends, and what a follower takes of it (Raft 5.3, 7; thesis 10.2)."""

from dataclasses import replace

from region_broker.controller.raft.effects import (
    Answered,
    AppendAnswer,
    AppendRequest,
    Committed,
    DropLog,
    Effect,
    Event,
    KeepSnapshotPiece,
    Outcome,
    Persist,
    Proposed,
    ReadAsked,
    Role,
    SendSnapshot,
    SnapshotAnswer,
    SnapshotRequest,
    Snapshotted,
)
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Term
from tests.unit.region_broker.controller.raft.driven_core import (
    SETTINGS,
    A,
    B,
    C,
    Driven,
    entries,
    of,
    point,
    sent,
)


def appends(
    term: int, previous: int, previous_term: int, new: tuple[Entry, ...] = (), commit: int = 0
) -> AppendRequest:
    at = LogIndex(previous), Term(previous_term)
    return AppendRequest(Term(term), *at, new, LogIndex(commit), 7)


def indexes(effects: list[Effect]) -> list[list[int]]:
    """Return the indexes in each request to B that has entries."""
    requests = [request for target, request in sent(effects, AppendRequest) if target == B]
    return [[each.index for each in request.entries] for request in requests if request.entries]


def leader(*terms: int, **changed: int) -> Driven:
    """Return a leader of three whose log begins with these terms, and that B follows."""
    settings = replace(SETTINGS, **changed)
    led = Driven(point(0, 0, A, B, C), entries(*terms), term=max(terms), settings=settings)
    led.elect(B)
    assert led.is_a(Role.LEADER)
    return led


def ready(**changed: int) -> tuple[Driven, int]:
    """Return a leader whose B has all, and where its log ends."""
    led = leader(1, **changed)
    led.taken(B, 2)
    led.taken(B, 3)
    assert led.core.commit_index == 3
    return led, 3


# --- followers ---


def test_INV_RFF1_a_late_request_cuts_nothing_off() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 1, 1, 1), term=1)
    effects = follower.hear(B, appends(1, 0, 0, entries(1, 1)))
    assert not of(effects, Persist)
    assert sent(effects, AppendAnswer)[0][1].matched == 2
    follower.wait(100)
    assert follower.hear(B, appends(2, 4, 1))  # the fourth is still there
    assert follower.is_a(Role.FOLLOWER)


def test_INV_RFF1_a_conflict_cuts_off_from_there_and_no_earlier() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 1, 2, 2), term=2)
    new = entries(1, 3, 3, first=2)
    [_, written] = of(follower.hear(B, appends(3, 1, 1, new)), Persist)
    assert written == Persist(None, LogIndex(2), new[1:])


def test_INV_RFF2_a_follower_commits_no_more_than_it_was_sent() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 1, 2, 2), term=2)
    follower.hear(B, appends(3, 1, 1, (), commit=4))
    assert follower.core.commit_index == 1


def test_a_refusal_says_where_the_terms_may_meet() -> None:
    """Figure 7 (f) of the paper: terms 1 1 1 2 2 2 3 3 3 3 3 against a leader of 1 1 1 4 4 5 5 6 6 6."""
    follower = Driven(point(0, 0, A, B, C), entries(1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3), term=3)
    [(_, answer)] = sent(follower.hear(B, appends(8, 10, 6)), AppendAnswer)
    assert (answer.taken, answer.hint_index, answer.hint_term) == (False, 10, 3)
    led = leader(1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    led.taken(C, 11)
    effects = led.refused(B, 10, 3)
    [request, *_] = [request for _, request in sent(effects, AppendRequest)]
    assert (request.previous_index, request.previous_term) == (3, 1)


def test_what_lacks_entries_says_where_its_log_ends() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 1), term=1)
    [(_, answer)] = sent(follower.hear(B, appends(1, 9, 1)), AppendAnswer)
    assert (answer.taken, answer.hint_index, answer.hint_term, answer.beat) == (False, 2, 1, 7)


# --- leaders ---


def test_INV_RFP2_what_is_on_its_way_is_bounded_and_the_rest_goes_together() -> None:
    led, last = ready(in_flight_requests_max=2)
    effects = [each for n in range(5) for each in led.step(Proposed(n, b"x"))]
    assert indexes(effects) == [[last + 1], [last + 2]]
    assert indexes(led.taken(B, last + 1)) == [[last + 3, last + 4, last + 5]]


def test_INV_RFP2_bytes_on_their_way_are_bounded_and_a_large_entry_goes_alone() -> None:
    led, last = ready(append_bytes_max=10, in_flight_bytes_max=15)
    effects = [each for n in range(3) for each in led.step(Proposed(n, b"12345678"))]
    assert indexes(effects) == [[last + 1], [last + 2]]
    effects = led.step(Proposed(9, bytes(20)))
    assert indexes(effects) == []
    assert indexes(led.taken(B, last + 2)) == [[last + 3], [last + 4]]


def test_INV_RFP1_an_answer_that_comes_late_takes_nothing_back() -> None:
    led, last = ready()
    led.step(Proposed(1, b"x"))
    led.taken(B, last + 1)
    assert led.core.commit_index == last + 1
    led.taken(B, 1)
    assert not indexes(led.refused(B, 1, 1)), "a refusal from before is not believed"
    assert indexes(led.step(Proposed(2, b"y"))) == [[last + 2]]


def test_a_heartbeat_that_is_refused_brings_what_was_lost() -> None:
    led, last = ready()
    led.step(Proposed(1, b"lost"))
    [heartbeat, _] = [each for _, each in sent(led.wait(10), AppendRequest)]
    assert (heartbeat.previous_index, heartbeat.entries) == (last + 1, ())
    assert indexes(led.refused(B, last, 2)) == [[last + 1]]


def test_the_leaders_copy_counts_behind_its_own_disk_and_requests_leave_before() -> None:
    led, last = ready()
    effects = led.step(Proposed(1, b"x"))
    written = effects.index(of(effects, Persist)[0])
    assert indexes(effects[:written]) == [[last + 1]]
    assert not of(effects, Committed)
    effects = led.taken(B, last + 1)
    assert [type(each) for each in effects[:2]] == [Committed, Answered]
    assert of(effects, Answered) == [Answered(1, Outcome.DONE, LogIndex(last + 1), A)]


def test_INV_RFD1_an_older_entry_is_committed_with_one_of_the_term_only() -> None:
    led = leader(1, 1)
    led.taken(B, 2)
    assert led.core.commit_index == 0
    led.taken(B, 3)
    assert led.core.commit_index == 3


def test_INV_RFD2_INV_RFC3_what_waits_is_lost_with_the_leadership() -> None:
    led, last = ready()
    led.step(Proposed(1, b"x"))
    led.step(ReadAsked(2))
    answers = of(led.hear(C, appends(9, 1, 1)), Answered)
    assert {each.ticket: each.outcome for each in answers} == {1: Outcome.LOST, 2: Outcome.LOST}
    assert of(led.step(Proposed(3, b"y")), Answered) == [
        Answered(3, Outcome.NOT_LEADER, LogIndex(last), C)
    ]


def test_INV_RFD4_a_leader_that_hears_no_majority_leads_no_more() -> None:
    led, _ = ready()
    for _ in range(9):
        led.wait(11)
    assert led.is_a(Role.LEADER)
    led.wait(11)
    assert led.is_a(Role.FOLLOWER)


def test_what_callers_can_make_wait_is_bounded() -> None:
    led, last = ready(waiting_max=2, payload_bytes_max=10)
    wishes: list[Event] = [
        Proposed(1, b"x"), Proposed(2, b"x"), Proposed(3, b"x"), Proposed(4, bytes(11)),
        ReadAsked(5), ReadAsked(6), ReadAsked(7),
    ]  # fmt: skip
    answers = [each for wish in wishes for each in of(led.step(wish), Answered)]
    assert {each.ticket: each.outcome for each in answers} == {
        3: Outcome.BUSY, 4: Outcome.REFUSED, 7: Outcome.BUSY,
    }  # fmt: skip
    assert led.core.commit_index == last


def test_uncommitted_bytes_are_bounded_and_free_again_when_committed() -> None:
    led, last = ready(uncommitted_bytes_max=100, payload_bytes_max=30)
    outcomes = [of(led.step(Proposed(n, bytes(20))), Answered) for n in (1, 2)]
    assert outcomes == [[], [Answered(2, Outcome.BUSY, LogIndex(last), A)]]
    led.taken(B, last + 1)
    assert not of(led.step(Proposed(3, bytes(20))), Answered)


# --- reads ---


def test_INV_RFR1_a_read_waits_for_a_round_that_began_behind_it() -> None:
    led, last = ready()
    [request, _] = [each for _, each in sent(led.step(ReadAsked(1)), AppendRequest)]
    assert not of(led.taken(B, last, request.beat - 1), Answered)
    led.step(ReadAsked(2))
    answered = led.taken(B, last, request.beat)
    assert of(answered, Answered) == [Answered(1, Outcome.DONE, LogIndex(last), A)]
    [(_, following), *_] = sent(answered, AppendRequest)
    assert following.beat == request.beat + 1
    assert [each.ticket for each in of(led.taken(C, last, following.beat), Answered)] == [2]


def test_INV_RFR1_a_read_waits_for_an_entry_of_the_term() -> None:
    led = leader(1, 1)
    [request, _] = [each for _, each in sent(led.step(ReadAsked(1)), AppendRequest)]
    assert not of(led.taken(B, 2, request.beat), Answered)
    assert of(led.taken(B, 3), Answered) == [Answered(1, Outcome.DONE, LogIndex(3), A)]


def test_who_votes_alone_reads_at_once() -> None:
    lone = Driven(point(0, 0, A))
    assert of(lone.step(ReadAsked(1)), Answered) == [Answered(1, Outcome.DONE, LogIndex(2), A)]


# --- snapshots ---


def snapshotting() -> Driven:
    """Return a leader that has dropped what C needs, and sends it a snapshot."""
    led, last = ready(kept_entries=0)
    assert of(led.step(Snapshotted(led.core.point_at(LogIndex(last)))), DropLog) == [
        DropLog(LogIndex(last))
    ]
    effects = led.refused(C, 0, 0)
    assert of(effects, SendSnapshot) == [SendSnapshot(C, led.core.term, 0)]
    return led


def have(led: Driven, have_bytes: int, index: int = 3) -> list[SendSnapshot]:
    answer = SnapshotAnswer(led.core.term, LogIndex(index), have_bytes, False)
    return of(led.hear(C, answer), SendSnapshot)


def test_a_snapshot_goes_piece_after_piece_and_a_repeated_answer_sends_none() -> None:
    led = snapshotting()
    assert have(led, 10) == [SendSnapshot(C, led.core.term, 10)]
    assert have(led, 10) == []
    assert have(led, 20) == [SendSnapshot(C, led.core.term, 20)]
    assert have(led, 4, index=1) == [SendSnapshot(C, led.core.term, 0)], "of an older snapshot"
    led.hear(C, SnapshotAnswer(led.core.term, LogIndex(3), 0, True))
    [(target, request)] = [s for s in sent(led.step(Proposed(1, b"x")), AppendRequest) if s[0] == C]
    assert (target, request.previous_index) == (C, 3)


def test_a_piece_that_is_lost_goes_again_after_an_election_timeout() -> None:
    led = snapshotting()
    have(led, 10)
    again: list[SendSnapshot] = []
    for _ in range(10):
        led.taken(B, 3)
        assert not again
        again = of(led.wait(10), SendSnapshot)
    assert again == [SendSnapshot(C, led.core.term, 10)]


def test_a_log_keeps_what_followers_who_were_away_may_need() -> None:
    led, last = ready(kept_entries=2)
    effects = led.step(Snapshotted(led.core.point_at(LogIndex(last))))
    assert of(effects, DropLog) == [DropLog(LogIndex(1))]
    effects = led.refused(C, 1, 1)
    assert [r.previous_index for t, r in sent(effects, AppendRequest) if t == C and r.entries] == [
        1
    ]
    assert of(led.refused(C, 0, 0), SendSnapshot) == [SendSnapshot(C, led.core.term, 0)]


def test_INV_RFD5_what_is_larger_than_a_message_goes_with_the_snapshot_that_it_is_in() -> None:
    """1. A member alone writes an entry of 20 MiB. 2. Others join it."""
    large = Entry(LogIndex(1), Term(1), EntryKind.COMMAND, bytes(11))
    limits = {"append_bytes_max": 10, "sent_payload_bytes_max": 10, "kept_entries": 100}
    settings = replace(SETTINGS, **limits)
    log = (large, *entries(1, first=2))
    led = Driven(point(0, 0, A, B, C), log, term=1, settings=settings)
    led.elect(B)
    led.taken(B, 2)
    led.taken(B, 3)
    effects = led.refused(C, 0, 0)
    assert not of(effects, SendSnapshot), "there is none that it is in"
    effects += led.wait(10)
    assert not [each for _, each in sent(effects, AppendRequest) if each.entries]
    led.step(Snapshotted(led.core.point_at(LogIndex(2))))
    assert of(led.refused(C, 0, 0), SendSnapshot) == [SendSnapshot(C, led.core.term, 0)]
    effects = led.hear(C, SnapshotAnswer(led.core.term, LogIndex(2), 0, True))
    [(_, request)] = [s for s in sent(effects, AppendRequest) if s[0] == C]
    assert [each.index for each in request.entries] == [3]


def piece(
    position: int, data: bytes, *, last: bool, term: int = 3, index: int = 9
) -> SnapshotRequest:
    return SnapshotRequest(Term(term), point(index, 2, A, B), position, data, last)


def test_a_snapshot_is_kept_in_order_and_takes_the_place_of_the_log() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 1), term=1)
    effects = [
        *follower.hear(B, piece(0, b"ab", last=False)),
        *follower.hear(B, piece(4, b"ef", last=False)),
        *follower.hear(B, piece(0, b"ab", last=False)),
        *follower.hear(B, piece(2, b"cd", last=True)),
    ]
    assert [(k.position, k.data, k.last) for k in of(effects, KeepSnapshotPiece)] == [
        (0, b"ab", False),
        (2, b"cd", True),
    ]
    answers = [answer for _, answer in sent(effects, SnapshotAnswer)]
    assert [(a.have_bytes, a.done) for a in answers] == [
        (2, False), (2, False), (2, False), (4, True),
    ]  # fmt: skip
    assert follower.core.commit_index == 9
    assert follower.core.membership.voters == (A, B)


def test_pieces_of_two_leaders_are_not_joined() -> None:
    follower = Driven(point(0, 0, A, B, C), term=1)
    follower.hear(B, piece(0, b"ab", last=False))
    effects = follower.hear(C, piece(2, b"cd", last=True, term=4))
    assert not of(effects, KeepSnapshotPiece)
    assert sent(effects, SnapshotAnswer)[0][1].have_bytes == 0


def test_a_snapshot_of_what_the_log_holds_commits_it_instead() -> None:
    follower = Driven(point(0, 0, A, B, C), entries(1, 2, 2), term=2)
    effects = follower.hear(B, piece(0, b"ab", last=False, index=2))
    assert [len(each.entries) for each in of(effects, Committed)] == [2]
    assert sent(effects, SnapshotAnswer)[0][1].done
    assert not of(effects, KeepSnapshotPiece)


def test_a_snapshot_that_is_too_large_is_not_kept() -> None:
    settings = replace(SETTINGS, snapshot_bytes_max=3)
    follower = Driven(point(0, 0, A, B, C), settings=settings)
    assert of(follower.hear(B, piece(0, b"abc", last=False)), KeepSnapshotPiece)
    assert not of(follower.hear(B, piece(3, b"d", last=True)), KeepSnapshotPiece)
