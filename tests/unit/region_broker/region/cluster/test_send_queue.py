"""What waits for a member (INV-CLQ1, INV-CLQ2), against a model that keeps a plain list."""

import random

from region_broker.controller.raft.effects import (
    MESSAGE_BYTES,
    AppendRequest,
    Message,
    SnapshotRequest,
    VoteRequest,
    message_bytes,
)
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    LogIndex,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.region.cluster.send_queue import PASSED_MAX, SendQueue

POINT = SnapshotPoint(LogIndex(1), Term(1), Membership(()))


def heartbeat(beat: int) -> Message:
    return AppendRequest(Term(1), LogIndex(0), Term(0), (), LogIndex(0), beat)


def entries(number: int, size_bytes: int = 10) -> Message:
    entry = Entry(LogIndex(1), Term(1), EntryKind.COMMAND, bytes(size_bytes))
    return AppendRequest(Term(1), LogIndex(0), Term(0), (entry,), LogIndex(0), number)


def vote(number: int) -> Message:
    return VoteRequest(Term(number), LogIndex(0), Term(0), pre=True)


def piece(number: int) -> Message:
    return SnapshotRequest(Term(1), POINT, number, bytes(100), last=False)


def all_of(queue: SendQueue) -> list[Message]:
    """Take all out."""
    found: list[Message] = []
    while (waiting := queue.take()) is not None:
        found.append(waiting.message)
    return found


def test_INV_CLQ2_messages_leave_in_their_order_and_pass_pieces() -> None:
    queue = SendQueue()
    sent = [piece(0), entries(1), heartbeat(2), piece(3), vote(4)]
    assert [queue.put("g", message) for message in sent] == [0] * 5
    assert all_of(queue) == [sent[1], sent[2], sent[4], sent[0], sent[3]]
    assert len(queue) == 0


def test_INV_CLQ2_a_piece_is_passed_by_so_many_and_no_more() -> None:
    queue = SendQueue()
    sent = [piece(0), piece(1), *map(vote, range(3 * PASSED_MAX))]
    for message in sent:
        queue.put("g", message)
    found = all_of(queue)
    assert [found.index(each) for each in sent[:2]] == [PASSED_MAX, 2 * PASSED_MAX + 1]


def test_INV_CLQ1_the_oldest_heartbeats_go_first_then_the_oldest_of_anything() -> None:
    queue = SendQueue(count_max=4)
    for message in (vote(1), heartbeat(1), entries(1), heartbeat(2)):
        queue.put("g", message)
    assert queue.put("g", vote(2)) == 1  # heartbeat 1
    assert queue.put("g", vote(3)) == 1  # heartbeat 2
    assert queue.put("g", vote(4)) == 1  # vote 1
    assert all_of(queue) == [entries(1), vote(2), vote(3), vote(4)]
    queue.put("g", piece(1))
    for number in range(4):
        queue.put("g", entries(number))
    assert all_of(queue) == [*map(entries, range(1, 4)), piece(1)]


def test_INV_CLQ1_bytes_are_bounded_as_numbers_are() -> None:
    queue = SendQueue(bytes_max=10_000)
    for number in range(3):
        assert queue.put("g", entries(number, 2_000)) == 0
    assert queue.put("g", entries(3, 9_000)) == 3
    assert queue.put("g", entries(4, 20_000)) == 1  # alone it is taken, however large
    assert all_of(queue) == [entries(4, 20_000)]


def test_INV_CLQ1_nothing_is_left_behind_by_any_order_of_use() -> None:
    chance = random.Random(1)
    queue = SendQueue(bytes_max=3_500, count_max=12)
    makers = (heartbeat, entries, vote, piece)
    held: list[Message] = []
    for number in range(20_000):
        if chance.random() < 0.55:
            message = chance.choice(makers)(number)
            dropped = queue.put("g", message)
            held.append(message)
            assert len(queue) == len(held) - dropped
            held = [*_waiting(queue)]
        elif (waiting := queue.take()) is not None:
            held.remove(waiting.message)
        if chance.random() < 0.01:
            queue.clear()
            held = []
        assert queue._bytes == sum(map(message_bytes, held)) <= 3_500
        assert len(queue) == len(held) <= 12
    assert MESSAGE_BYTES * 12 < 3_500 < message_bytes(piece(1)) * 12, "both limits were met"


def _waiting(queue: SendQueue) -> list[Message]:
    return [each.message for each in (*queue._plain, *queue._pieces)]
