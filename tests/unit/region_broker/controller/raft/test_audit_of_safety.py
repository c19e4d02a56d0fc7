"""Where raftos 0.2.6 breaks Raft: each finding shown on it (`test_..._stock`), and that ours keeps the rule (`test_..._ours`).

| finding | shown by |
|---|---|
| RS1 to RS15, RS17 to RS23, RS25 | two tests each, below (RS11, RS15 and RS20 were read before, and can be shown) |
| RS16  a follower reports and commits its whole log | read of raftos' master: in 0.2.6 RS6 hides it. Ours is shown |
| RS23  ours loads no ciphers | `test_audit_of_running`, in a process of its own |
| RS24  entries over 48 kB cannot leave in a datagram, and the sender's address is its identity | read: ours has no datagrams, and who sent a message is handed in with it (`Received`) |
| RS26  no snapshots, membership changes, batches, transfers | read; that ours has them, `test_shell` shows |

Rules are cited from the Raft paper's figure 2 and sections, and Ongaro's thesis. On stock raftos run the shims of
`tests.fixtures.stock_raftos`: another serializer (RP11), and the exception that asyncio renamed (RP5).
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import Answered as AnsweredWish
from region_broker.controller.raft.effects import (
    AppendAnswer,
    AppendRequest,
    Committed,
    Effect,
    Message,
    Outcome,
    Persist,
    Proposed,
    ReadAsked,
    Received,
    Role,
    Send,
    Ticked,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    Entry,
    EntryKind,
    HardState,
    LogIndex,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.failures import Lost
from region_broker.controller.raft.log_view import LogView
from region_broker.controller.raft.progress import Progress
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import GroupTimer
from tests.fixtures.raft_groups import FOLDER, QUICK, alone, leader_of, member, several
from tests.fixtures.stock_raftos import A, Address, B, C, D, Stock, settle, stock_raftos
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.simulation.simulated_loop import run_simulated

ELECTION_MS = RaftSettings().election_timeout_ms


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stock]:
    monkeypatch.setattr(
        asyncio.futures, "InvalidStateError", asyncio.InvalidStateError, raising=False
    )
    with stock_raftos(tmp_path) as found:
        yield found


def name_of(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def vote_request(sender: Address, term: int, **fields: object) -> dict[str, object]:
    return {
        "type": "request_vote", "term": term, "candidate_id": name_of(sender), "sender": sender,
        "last_log_index": 0, "last_log_term": 0,
    } | fields  # fmt: skip


def granted(sender: Address, term: int) -> dict[str, object]:
    return {
        "type": "request_vote_response", "term": term, "vote_granted": True, "sender": sender
    }  # fmt: skip


def append_entries(term: int, previous: int = 0, **fields: object) -> dict[str, object]:
    return {
        "type": "append_entries", "term": term, "leader_id": name_of(A), "commit_index": 0,
        "request_id": 1, "prev_log_index": previous, "prev_log_term": 1 if previous else 0,
        "entries": [], "sender": A,
    } | fields  # fmt: skip


def taken(sender: Address, term: int, last: int, request: int = 0) -> dict[str, object]:
    return {
        "type": "append_entries_response", "term": term, "success": True, "last_log_index": last,
        "request_id": request, "sender": sender,
    }  # fmt: skip


def stock_leader(stock: Stock, *others: Address, term: int = 1) -> Any:
    """Return a member that leads `term`."""
    state = stock.member(*others)
    state.start()
    state.storage.update({"term": term - 1})
    state.to_candidate()
    state.to_leader()
    return state


# -- ours ----------------------------------------------------------------------------------------


def core_of(
    voters: int,
    entries: tuple[Entry, ...] = (),
    hard_state: HardState | None = None,
    **settings: Any,
) -> RaftCore:
    """Return member 1 of so many, which draws no jitter, started at 0 ms."""
    founders = SnapshotPoint(
        BEFORE_FIRST, NO_TERM, Membership(tuple(map(member, range(1, voters + 1))))
    )
    core = RaftCore(
        member(1), hard_state or HardState(), founders, entries,
        settings=RaftSettings(**settings), draw=lambda below: 0,
    )  # fmt: skip
    core.start(0)
    return core


def entry(index: int, term: int = 1, payload: bytes = b"x") -> Entry:
    return Entry(LogIndex(index), Term(term), EntryKind.COMMAND, payload)


def got(core: RaftCore, sender: int, message: Message, now_ms: int = ELECTION_MS) -> list[Effect]:
    return core.step(Received(member(sender), message), now_ms)


def sent(effects: list[Effect]) -> list[Message]:
    return [each.message for each in effects if isinstance(each, Send)]


def request(
    term: int, previous: tuple[int, int] = (0, 0), *entries: Entry, commit: int = 0
) -> AppendRequest:
    return AppendRequest(
        Term(term), LogIndex(previous[0]), Term(previous[1]), entries, LogIndex(commit), 1
    )


def ask(term: int, last: tuple[int, int] = (0, 0), *, pre: bool = False) -> VoteRequest:
    return VoteRequest(Term(term), LogIndex(last[0]), Term(last[1]), pre)


def matched(core: RaftCore, index: int, term: int | None = None) -> AppendAnswer:
    return AppendAnswer(Term(term or core.term), True, LogIndex(index), BEFORE_FIRST, NO_TERM, 0)


def role_of(core: RaftCore) -> Role:
    return core.role


def candidate(voters: int, **more: Any) -> RaftCore:
    """Return a core that asks for votes."""
    core = core_of(voters, **more)
    core.step(Ticked(), ELECTION_MS)
    for voter in range(2, voters // 2 + 2):
        got(core, voter, VoteAnswer(Term(core.term + 1), True, True))
    assert role_of(core) is Role.CANDIDATE
    return core


def leader(voters: int, **more: Any) -> RaftCore:
    core = candidate(voters, **more)
    for voter in range(2, voters // 2 + 2):
        got(core, voter, VoteAnswer(core.term, False, True))
    assert role_of(core) is Role.LEADER
    return core


# -- RS1: a vote is forgotten (Election Safety) ---------------------------------------------------


async def test_rs1_stock_votes_twice_in_a_term_if_it_is_started_again(stock: Stock) -> None:
    state = stock.member(A, B)
    state.start()
    state.request_handler(vote_request(A, 5))
    state.request_handler(vote_request(A, 5))
    state.stop()
    again = stock.member(A, B)
    again.start()
    again.request_handler(vote_request(B, 5))
    await settle()
    assert [state.storage.voted_for, again.storage.voted_for] == [name_of(A), name_of(B)]
    assert again.server.sent[-1]["vote_granted"]
    again.stop()


def test_rs1_ours_remembers_its_vote() -> None:
    disk = SimulatedDisk()
    store = RaftStore.open(disk, FOLDER, member(1))[0]
    effects = got(core_of(3), 2, ask(5))
    store.persist([each for each in effects if isinstance(each, Persist)])
    assert sent(effects) == [VoteAnswer(Term(5), False, True)]
    store.close()
    found = RaftStore.open(disk, FOLDER, member(1))[1]
    again = core_of(3, hard_state=found.hard_state)
    assert sent(got(again, 3, ask(5))) == [VoteAnswer(Term(5), False, False)]
    assert sent(got(again, 2, ask(5))) == [VoteAnswer(Term(5), False, True)]


# -- RS2: a vote of an earlier term keeps from voting (liveness) ----------------------------------


async def test_rs2_stock_neither_votes_nor_answers_in_a_later_term(stock: Stock) -> None:
    state = stock.member(A, B)
    state.start()
    state.request_handler(vote_request(A, 1))
    state.request_handler(vote_request(B, 2))
    await settle()
    assert (state.storage.term, state.storage.voted_for) == (2, name_of(A))
    assert [each["term"] for each in state.server.sent] == [1]
    state.stop()


def test_rs2_ours_votes_anew_in_each_term_and_repeats_its_answer() -> None:
    core = core_of(3)
    for sender, term in ((2, 1), (3, 2), (3, 2)):
        assert sent(got(core, sender, ask(term))) == [VoteAnswer(Term(term), False, True)]


# -- RS3: votes are counted, not voters (Election Safety) -----------------------------------------


async def test_rs3_stock_leads_five_by_one_vote_that_came_twice(stock: Stock) -> None:
    state = stock.member(A, B, C, D)
    state.start()
    state.to_candidate()
    for _ in range(2):
        state.request_handler(granted(A, 1))
    assert isinstance(state.state, stock.state.Leader)
    state.stop()


async def test_rs3_stock_counts_votes_of_former_terms_and_of_strangers(stock: Stock) -> None:
    state = stock.member(A, B, C, D)
    state.start()
    state.storage.update({"term": 6})
    state.to_candidate()
    state.request_handler(granted(A, 1))
    state.request_handler(granted(("10.0.0.1", 1), 7))
    assert isinstance(state.state, stock.state.Leader)
    state.stop()


def test_rs3_ours_counts_voters_of_this_term_once() -> None:
    core = candidate(5, hard_state=HardState(Term(6)))
    for sender, term in ((2, 7), (2, 7), (3, 1), (9, 7)):
        got(core, sender, VoteAnswer(Term(term), False, True))
    assert role_of(core) is Role.CANDIDATE
    got(core, 3, VoteAnswer(Term(7), False, True))
    assert role_of(core) is Role.LEADER


# -- RS4: answers of former terms commit (Leader Completeness) ------------------------------------


async def test_rs4_stock_commits_by_an_answer_of_a_former_term(stock: Stock) -> None:
    state = stock_leader(stock, A, B, term=3)
    state.log.write(3, {"x": 1})
    state.request_handler(taken(A, 1, 1))
    assert state.log.commit_index == 1
    state.stop()


def test_rs4_ours_commits_by_answers_of_its_term_alone() -> None:
    core = leader(3, hard_state=HardState(Term(2)))
    got(core, 2, matched(core, 2, term=1))
    assert core.commit_index == 0
    got(core, 2, matched(core, 2))
    assert core.commit_index == 2


# -- RS5: the match index falls -------------------------------------------------------------------


async def test_rs5_stock_forgets_what_a_follower_has_when_answers_change_places(
    stock: Stock,
) -> None:
    state = stock_leader(stock, A, B)
    for number in range(3):
        state.log.write(1, {"x": number})
    state.request_handler(taken(A, 1, 3))
    state.request_handler(taken(A, 1, 1))
    assert state.log.match_index[name_of(A)] == 1
    state.stop()


def test_rs5_ours_never_does() -> None:
    progress = Progress(LogIndex(1), 0)
    progress.taken_up_to(LogIndex(3))
    progress.taken_up_to(LogIndex(1))
    assert (progress.match_index, progress.next_index) == (3, 4)


# -- RS6: a delayed heartbeat erases committed entries (State Machine Safety) ---------------------


async def test_rs6_stock_erases_committed_entries(stock: Stock) -> None:
    state = stock.member(A)
    state.start()
    one, two = ({"term": 1, "command": {"x": number}} for number in (1, 2))
    state.request_handler(append_entries(1, entries=[one]))
    state.request_handler(append_entries(1, 1, entries=[two], commit_index=2))
    assert (len(state.log), state.log.commit_index) == (2, 2)
    state.request_handler(append_entries(1))
    assert (len(state.log), state.log.commit_index) == (0, 2)
    state.stop()


def test_rs6_ours_cuts_only_what_differs_and_is_not_committed() -> None:
    core = core_of(3)
    got(core, 2, request(1, (0, 0), entry(1), entry(2), commit=2))
    effects = got(core, 2, request(1))
    assert not [each for each in effects if isinstance(each, Persist)]
    assert core.commit_index == 2
    got(core, 2, request(1, (2, 1), entry(3), entry(4)))
    (cut,) = [
        each for each in got(core, 3, request(2, (3, 1), entry(4, 2))) if isinstance(each, Persist) and each.entries
    ]  # fmt: skip
    assert (cut.cut_behind, cut.entries) == (3, (entry(4, 2),))


# -- RS7: half is a majority (quorum intersection) ------------------------------------------------


@pytest.mark.parametrize("members", [2, 4, 6])
async def test_rs7_stock_takes_half_for_a_majority(stock: Stock, members: int) -> None:
    state = stock.member(*(("127.0.0.1", 9000 + each) for each in range(members - 1)))
    assert state.is_majority(members // 2)


@pytest.mark.parametrize("members", [2, 4, 6])
def test_rs7_ours_needs_more_than_half(members: int) -> None:
    core = candidate(members)
    for voter in range(2, members // 2 + 1):
        got(core, voter, VoteAnswer(core.term, False, True))
    assert role_of(core) is Role.CANDIDATE
    got(core, members, VoteAnswer(core.term, False, True))
    assert role_of(core) is Role.LEADER


# -- RS8: an entry of a former term in front keeps from committing (5.4.2, 8) ---------------------


async def test_rs8_stock_never_commits_again_behind_an_entry_of_a_former_term(stock: Stock) -> None:
    state = stock_leader(stock, A, B, term=2)
    state.log.write(1, {"x": 1})
    state.log.write(2, {"x": 2})
    for follower in (A, B):
        state.request_handler(taken(follower, 2, 2))
    assert state.log.commit_index == 0
    state.stop()


def test_rs8_ours_begins_its_term_with_an_entry_that_commits_what_is_before_it() -> None:
    core = leader(3, entries=(entry(1),), hard_state=HardState(Term(1)))
    got(core, 2, matched(core, 1))
    assert core.commit_index == 0
    got(core, 2, matched(core, 2))
    assert core.commit_index == 2


# -- RS9: old commands are applied again over newer state (State Machine Safety) ------------------


async def test_rs9_stock_goes_back_in_time_when_it_is_started_again(stock: Stock) -> None:
    state = stock.member(A)
    state.start()
    entries = [{"term": 1, "command": {"x": number}} for number in (1, 2)]
    state.request_handler(append_entries(1, entries=entries, commit_index=2))
    state.request_handler(append_entries(1, 2, commit_index=2))
    assert state.state_machine["x"] == 2
    state.stop()
    again = stock.member(A)
    again.start()
    again.log.commit_index = 1
    again.request_handler(append_entries(1, 2, commit_index=1))
    assert again.state_machine["x"] == 1
    again.stop()


def test_rs9_ours_goes_on_from_its_snapshot() -> None:
    async def play() -> None:
        async with alone(snapshot_after_bytes=1, settings=QUICK) as site:
            for payload in (b"x=1", b"x=2"):
                await site.running.propose(payload)
            await site.stop()
            site.start()
            assert site.machine.taken == [b"x=1", b"x=2"]
            await site.running.propose(b"x=3")
            assert site.machine.taken == [b"x=1", b"x=2", b"x=3"]

    run_simulated(play(), 1)


# -- RS10: one future for all callers (durability, linearizability) -------------------------------


async def test_rs10_stock_acknowledges_the_wrong_one_and_forgets_the_other(stock: Stock) -> None:
    state = stock_leader(stock, A, B)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(state.state.execute_command({"x": 1}))
        await settle()
        second = tasks.create_task(state.state.execute_command({"y": 2}))
        await settle()
        state.request_handler(taken(A, 1, 1))
        state.request_handler(taken(B, 1, 1))
        await settle()
        assert state.log.commit_index == 1, "only x is committed"
        assert (first.done(), second.done()) == (False, True)
        first.cancel()
    state.stop()


def test_rs10_ours_answers_each_with_its_own_entry_and_all_when_it_leads_no_more() -> None:
    core = leader(3)
    for ticket in (1, 2, 3):
        core.step(Proposed(ticket, b"x"), ELECTION_MS)
    done = [each for each in got(core, 2, matched(core, 4)) if isinstance(each, AnsweredWish)]
    assert [(each.ticket, each.outcome, each.index) for each in done] == [
        (1, Outcome.DONE, 3),
        (2, Outcome.DONE, 4),
    ]
    lost = [each for each in got(core, 3, request(9)) if isinstance(each, AnsweredWish)]
    assert [(each.ticket, each.outcome) for each in lost] == [(3, Outcome.LOST)]


# -- RS11: reads of a deposed leader (linearizable reads) -----------------------------------------


async def test_rs11_stock_answers_a_read_though_nobody_follows_it(stock: Stock) -> None:
    state = stock_leader(stock, A, B)
    state.state_machine.apply({"x": "old"})
    assert await stock.state.State.get_value("x") == "old"
    assert not [each for each in state.server.sent if each["type"] == "append_entries"]
    state.stop()


def test_rs11_ours_answers_a_read_after_a_majority_confirmed_that_it_leads() -> None:
    core = leader(3)
    got(core, 2, matched(core, 2))
    effects = core.step(ReadAsked(7), ELECTION_MS)
    assert not [each for each in effects if isinstance(each, AnsweredWish)]
    (asked, *_) = [each for each in sent(effects) if isinstance(each, AppendRequest)]
    confirmed = msgspec.structs.replace(matched(core, 2), beat=asked.beat)
    assert AnsweredWish(7, Outcome.DONE, LogIndex(2), member(1)) in got(core, 2, confirmed)

    async def cut_off() -> None:
        async with several(3) as (deposed, *others):
            assert deposed.bus is not None
            deposed.bus.cut.add(deposed.me)
            with pytest.raises(Lost):
                await deposed.running.ask(ReadAsked)
            await leader_of(others)

    run_simulated(cut_off(), 1)


# -- RS12: nothing is synced, files are torn (persistence rule) -----------------------------------


async def test_rs12_stock_syncs_nothing_and_tears_its_term(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    state = stock.member(A)
    state.start()
    state.request_handler(append_entries(5, entries=[{"term": 5, "command": {}}]))
    state.request_handler(vote_request(A, 6, last_log_index=9, last_log_term=9))
    assert (state.storage.term, synced) == (6, [])
    state.stop()

    def end(_: object) -> bytes:
        raise Crashed  # after open(..., "wb"), before the write

    monkeypatch.setattr(state.storage.serializer, "pack", end)
    with pytest.raises(Crashed):
        state.storage.update({"term": 7})
    again = stock.storage.FileStorage(state.id)
    assert not again.exists("term")


def test_rs12_ours_is_all_there_or_as_it_was_at_every_crash_point() -> None:
    """More of it: `test_durable`, `tests.property.test_raft_store`."""
    vote = Persist(HardState(Term(6), member(2)), None, (entry(1),))
    for crash_at in range(3):
        disk = SimulatedDisk()
        store = RaftStore.open(disk, FOLDER, member(1))[0]
        disk.crash_after(crash_at)
        try:
            store.persist([vote])
        except Crashed:
            assert crash_at < 2, "it writes, and it syncs"
        disk.process_killed()
        found = RaftStore.open(disk, FOLDER, member(1))[1]
        assert (found.hard_state, found.entries) in [
            (HardState(), ()),
            (vote.hard_state, vote.entries),
        ]


# -- RS13: requests in a term that was never won (Election Safety) --------------------------------


async def test_rs13_stock_leads_a_term_that_it_never_won(stock: Stock) -> None:
    state = stock_leader(stock, A, B)
    state.state.heartbeat()
    state.request_handler(append_entries(50))
    await settle()
    assert isinstance(state.state, stock.state.Follower)
    assert 50 in {each["term"] for each in state.server.sent if each.get("leader_id") == state.id}
    state.stop()


def test_rs13_ours_sends_nothing_as_leader_once_it_follows() -> None:
    core = leader(3)
    core.step(Proposed(1, b"x"), ELECTION_MS)
    effects = got(core, 3, request(50))
    effects += core.step(Ticked(), ELECTION_MS + 100)
    assert role_of(core) is Role.FOLLOWER
    assert not [each for each in sent(effects) if isinstance(each, AppendRequest)]


# -- RS14: the answer of a stale request breaks the leader ----------------------------------------


async def test_rs14_stock_leader_cannot_read_the_refusal_of_a_later_term(stock: Stock) -> None:
    follower = stock.member(A)
    follower.start()
    follower.storage.update({"term": 5})
    follower.request_handler(append_entries(1))
    await settle()
    (refusal,) = follower.server.sent
    state = stock_leader(stock, A, B)
    with pytest.raises(KeyError, match="request_id"):
        state.request_handler(refusal | {"term": 1, "sender": A})
    follower.stop()
    state.stop()


def test_rs14_ours_learns_the_later_term_from_the_refusal() -> None:
    follower = core_of(3, hard_state=HardState(Term(5)))
    (refusal,) = sent(got(follower, 1, request(1)))
    core = leader(3)
    got(core, 2, refusal)
    assert (core.role, core.term) == (Role.FOLLOWER, 5)


# -- RS15: what is committed is applied with the next message -------------------------------------


async def test_rs15_stock_applies_only_when_the_next_message_comes(stock: Stock) -> None:
    state = stock.member(A)
    state.start()
    one = {"term": 1, "command": {"x": 1}}
    state.request_handler(append_entries(1, entries=[one], commit_index=1))
    assert (state.log.commit_index, state.log.last_applied) == (1, 0)
    state.stop()


def test_rs15_ours_applies_in_the_same_step() -> None:
    effects = got(core_of(3), 2, request(1, (0, 0), entry(1), commit=1))
    assert Committed((entry(1),)) in effects


# -- RS16: a follower says more than it knows to be the leader's (Log Matching) -------------------


def test_rs16_ours_reports_and_commits_no_further_than_the_request_reaches() -> None:
    core = core_of(3, entries=(entry(1), entry(2), entry(3)), hard_state=HardState(Term(1)))
    effects = got(core, 2, request(2, (1, 1), commit=3))
    (answer,) = [each for each in sent(effects) if isinstance(each, AppendAnswer)]
    assert (answer.taken, answer.matched, core.commit_index) == (True, 1, 1)


# -- RS17: globals (several groups in one process) ------------------------------------------------


async def test_rs17_stock_members_overwrite_each_other_s_leader(stock: Stock) -> None:
    first, second = stock.member(A), stock.member(B, me=C)
    first.start()
    first.to_candidate()
    first.to_leader()
    second.start()
    second.set_leader("somebody else")
    assert first.get_leader() == "somebody else"
    first.stop()
    second.stop()


def test_rs17_ours_know_nothing_of_each_other() -> None:
    async def play() -> None:
        async with alone() as first, several(3) as (second, *_):
            assert (first.running.leader, second.running.leader) == (first.me, second.me)
            await second.crash()
            await first.running.propose(b"x")
            assert first.running.leader == first.me

    run_simulated(play(), 3)


# -- RS18: timers of roles that are over ----------------------------------------------------------


async def test_rs18_stock_timers_rise_again(stock: Stock) -> None:
    timer = stock.timer.Timer(1000, lambda: None)
    timer.start()
    timer.stop()
    timer.reset()
    assert timer.is_active
    timer.stop()


async def test_rs18_ours_stay_stopped() -> None:
    timer = GroupTimer(1000, lambda: None)
    timer.start()
    timer.stop()
    timer.reset()
    assert not timer.is_active


# -- RS19: who steps down gives the message to the role that is over ------------------------------


async def test_rs19_stock_candidate_never_answers_a_later_candidate(stock: Stock) -> None:
    state = stock.member(A, B)
    state.start()
    state.to_candidate()
    state.server.sent.clear()
    state.request_handler(vote_request(A, 9))
    await settle()
    assert isinstance(state.state, stock.state.Follower)
    assert state.server.sent == []
    state.stop()


def test_rs19_ours_votes_for_it() -> None:
    assert sent(got(candidate(3), 2, ask(9))) == [VoteAnswer(Term(9), False, True)]


# -- RS20: elections that disturb -----------------------------------------------------------------


async def test_rs20_stock_does_not_wait_for_whom_it_voted_for_nor_for_a_leader_it_lags_behind(
    stock: Stock,
) -> None:
    state = stock.member(A, B)
    state.start()
    due = state.state.election_timer.handler
    state.request_handler(vote_request(A, 0))
    state.request_handler(append_entries(1, 7))
    await settle()
    assert state.server.sent[0]["vote_granted"]
    assert state.state.election_timer.handler is due
    state.stop()


def test_rs20_ours_waits_for_both_and_asks_before_it_disturbs() -> None:
    for message in (ask(1), request(1, (7, 1))):
        core = core_of(3)
        got(core, 2, message, ELECTION_MS - 1)
        assert core.step(Ticked(), ELECTION_MS + 1) == []
    core = core_of(3)
    asked = sent(core.step(Ticked(), ELECTION_MS))
    assert asked == [ask(1, pre=True)] * 2
    assert core.term == 0


# -- RS21: index 0 is the last entry --------------------------------------------------------------


async def test_rs21_stock_takes_the_last_entry_for_the_one_before_the_first(stock: Stock) -> None:
    state = stock.member(A)
    for term in (1, 2, 3):
        state.log.write(term, {})
    assert state.log[0]["term"] == 3


@pytest.mark.parametrize(("index", "term"), [(-1, None), (0, 0), (1, 1), (3, 3), (4, None)])
def test_rs21_ours_knows_where_its_log_begins_and_ends(index: int, term: int | None) -> None:
    log = LogView(
        SnapshotPoint(BEFORE_FIRST, NO_TERM, Membership(())),
        [entry(each, each) for each in (1, 2, 3)],
    )
    assert log.term_at(LogIndex(index)) == term


# -- RS22: no schema ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{"type": "nothing"}, {"type": "append_entries"}, {}])
async def test_rs22_stock_raises_whatever_a_datagram_brings(
    stock: Stock, data: dict[str, object]
) -> None:
    state = stock.member(A)
    state.start()
    with pytest.raises((AttributeError, KeyError)):
        state.request_handler(data)
    state.stop()


def test_rs22_ours_has_a_schema() -> None:
    """The transport decodes; what does not fit never becomes a message."""
    decoder = msgspec.msgpack.Decoder(Message)
    for wrong in (
        {"type": "nothing"},
        {"type": "AppendRequest"},
        {},
        {"type": "VoteAnswer", "term": "1"},
    ):
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(msgspec.msgpack.encode(wrong))
    right = request(1, (0, 0), entry(1))
    assert decoder.decode(msgspec.msgpack.encode(right)) == right


# -- RS23: the secret that is configured is not used ----------------------------------------------


def test_rs23_stock_goes_on_with_the_key_of_its_source_code(tmp_path: Path) -> None:
    with stock_raftos(tmp_path, ciphers=True) as stock:
        before = stock.conf.config.cryptor
        stock.package.configure({"secret_key": b"mine"})
        assert stock.conf.config.cryptor is before
        assert [each["salt"] for each in stock.derived] == [b"raftos sample salt"]


def test_rs23_stock_without_cryptography_encrypts_nothing(stock: Stock) -> None:
    assert stock.conf.config.cryptor.encrypt(b"plain") == b"plain"


# -- RS25: a member alone -------------------------------------------------------------------------


async def test_rs25_stock_alone_never_leads(stock: Stock) -> None:
    state = stock.member()
    state.start()
    for _ in range(5):
        state.to_candidate()
        await settle()
        assert isinstance(state.state, stock.state.Candidate)
    state.stop()


def test_rs25_ours_leads_at_once() -> None:
    assert core_of(1).role is Role.LEADER
