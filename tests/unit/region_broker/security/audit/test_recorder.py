"""The recorder: intents before, the rest behind, floods as counts, nothing lost uncounted (INV-ARC1..3, INV-ATR1, INV-ATR2)."""

import asyncio
import errno
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from region_broker.security.audit import recorder as recorder_module
from region_broker.security.audit.events import (
    DETAIL_CHARS_MAX,
    HIDDEN,
    Actor,
    AuditEvent,
    Kind,
    Outcome,
    shown_value,
)
from region_broker.security.audit.recorder import (
    DETAILS_MS,
    FLOOD_KINDS_MAX,
    FLOOD_MS,
    FLOOD_OF_ONE_MAX,
    AuditRecorder,
)
from region_broker.security.audit.trail import AuditUnwritable, told_unless_said
from region_broker.security.identity import Identity
from tests.fixtures.node_logs import ManualClock, at_once
from tests.simulation.disk import SimulatedDisk
from tests.unit.region_broker.security.audit.chains import (
    MIB,
    lines_on,
    opened,
    operations,
    verified_on,
)

ALICE = Identity("User:alice", "10.0.0.1", "SCRAM-SHA-256")
TURNS = 60


class Trail:
    """A recorder on a simulated disk, on a clock that is moved by hand."""

    def __init__(self, *, bytes_max: int = MIB) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.recorder = AuditRecorder(
            opened(self.disk), self.clock, node="eu/1", bytes_max=bytes_max, offload=at_once
        )

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, also for whoever waits by the loop's time for news."""
        self.clock.pass_ms(duration_ms)
        self.recorder._news.set()
        await self.turns()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines_on(self.disk)][1:]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Trail]:
    trail = Trail(**settings)
    task = asyncio.get_running_loop().create_task(trail.recorder.run())
    try:
        await trail.turns()
        yield trail
    finally:
        task.cancel()
        await asyncio.wait([task])
        trail.recorder.close()
        assert verified_on(trail.disk).is_sound


def change(operation: str = "CreateTopic", outcome: Outcome = Outcome.INTENDED) -> AuditEvent:
    return AuditEvent(
        kind=Kind.CHANGE, operation=operation, outcome=outcome, actor=Actor.of(ALICE, "1#7"),
        resource_type="TOPIC", resource="orders", details={"partitions": 3},
    )  # fmt: skip


async def test_an_intent_is_durable_before_who_waits_goes_on() -> None:
    """INV-ATR1."""
    async with running() as trail:
        recorded = await trail.recorder.intended(change())
        trail.disk.process_killed()  # whatever is not synced may be lost from here on
        [intent] = trail.records()
        assert intent["outcome"] == "intended"
        assert {key: intent[key] for key in ("principal", "host", "mechanism", "request_id", "node", "resource", "details")} == {
            "principal": "User:alice", "host": "10.0.0.1", "mechanism": "SCRAM-SHA-256", "request_id": "1#7", "node": "eu/1",
            "resource": "orders", "details": {"partitions": 3},
        }  # fmt: skip
        assert recorded.is_told is False


async def test_the_outcome_answers_its_intent_once() -> None:
    """INV-ARC3: also where the queue of what nobody waits for is full."""
    async with running() as trail:
        recorded = await trail.recorder.intended(change())
        for _ in range(recorder_module.QUEUE_MAX + 10):
            trail.recorder.record(change("step", Outcome.DONE))
        recorded.ended(Outcome.DONE)
        recorded.ended(Outcome.FAILED)
        await trail.turns()
        assert trail.recorder.lost["change"] == 10
        intent, outcome = [row for row in trail.records() if row["operation"] == "CreateTopic"]
        assert (outcome["outcome"], outcome["answers"]) == ("done", intent["seq"])
        assert "details" not in outcome, "its intent has them"


async def test_INV_ARC4_who_is_gone_before_his_intent_is_written_has_done_nothing() -> None:
    """A client that leaves while the disk of the trail is slow: its request is cancelled, and the record of it is written."""
    trail = Trail()
    asking = asyncio.get_running_loop().create_task(trail.recorder.intended(change()))
    await trail.turns()
    asking.cancel()
    await asyncio.wait([asking])
    writing = asyncio.get_running_loop().create_task(trail.recorder.run())
    await trail.turns()
    intent, outcome = trail.records()
    assert (intent["outcome"], outcome["outcome"]) == ("intended", "failed")
    assert outcome["answers"] == intent["seq"]
    writing.cancel()
    await asyncio.wait([writing])


async def test_INV_ARC2_what_was_only_counted_is_counted_in_the_trail_also_where_a_node_stops() -> (
    None
):
    trail = Trail()
    for _ in range(recorder_module.QUEUE_MAX + 3):
        trail.recorder.record(change("step", Outcome.DONE))
    trail.recorder.close()
    assert [row["details"] for row in trail.records() if row["operation"] == "lost"] == [{"change": 3}]  # fmt: skip


async def test_what_ends_without_a_word_is_unknown() -> None:
    async with running() as trail:
        recorded = await trail.recorder.intended(change())
        with pytest.raises(ZeroDivisionError), told_unless_said(recorded):
            raise ZeroDivisionError
        await trail.turns()
        assert trail.records()[-1]["outcome"] == "unknown"


async def test_intents_of_one_turn_are_one_sync() -> None:
    """INV-ARC1."""
    async with running() as trail:
        syncs = []
        trail.disk.fault = lambda operation, _: syncs.append(operation) if operation == "fdatasync" else None  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(_intend(trail.recorder, change(f"op{number}")))
        assert len(syncs) == 1
        assert sorted(operations(lines_on(trail.disk)[1:])) == sorted(f"op{n}" for n in range(50))


async def _intend(recorder: AuditRecorder, event: AuditEvent) -> None:
    await recorder.intent(event)


async def test_a_full_disk_refuses_intents_with_the_reason_and_goes_on_later() -> None:
    """INV-ATR1; what nobody waits for is kept meanwhile."""
    async with running() as trail:
        trail.disk.room_bytes = 0
        with pytest.raises(
            AuditUnwritable,
            match=r"No space left.*What cannot be recorded is not done.*another audit_dir.*runbooks/audit",
        ):
            await trail.recorder.intent(change())
        assert "No space" in (trail.recorder.problem() or "")
        trail.recorder.record(change("ElectLeader", Outcome.DONE))
        trail.disk.room_bytes = None
        await trail.pass_ms(recorder_module.RETRY_MS)
        await trail.recorder.intent(change("later"))
        assert trail.recorder.problem() is None
        assert sorted(operations(lines_on(trail.disk)[1:])) == ["ElectLeader", "later"]


async def test_what_cannot_be_written_is_tried_again_and_what_was_counted_is_counted() -> None:
    """INV-ATR2, INV-ARC2."""
    async with running() as trail:
        trail.disk.room_bytes = 0
        for number in range(FLOOD_OF_ONE_MAX + 7):
            trail.recorder.refused(ALICE, "READ", "TOPIC", f"t{number}")
        trail.recorder.record(change("ElectLeader", Outcome.DONE))
        for _ in range(3):
            await trail.pass_ms(recorder_module.RETRY_MS)
        assert trail.recorder.problem() is not None
        trail.disk.room_bytes = None
        for _ in range(3):
            await trail.pass_ms(recorder_module.RETRY_MS)
        counts = Counter(row["operation"] for row in trail.records())
        assert counts == {"READ": FLOOD_OF_ONE_MAX, "ElectLeader": 1, "lost": 1}
        [lost] = [row for row in trail.records() if row["operation"] == "lost"]
        assert lost["details"] == {"refusal": 7}


async def test_what_was_put_back_is_written_in_its_order() -> None:
    async with running() as trail:
        recorded = [await trail.recorder.intended(change(name)) for name in ("a", "b", "c")]
        trail.disk.room_bytes = 0
        for number in range(3):
            recorded[number].ended(Outcome.DONE)
            trail.recorder.record(change(f"step {number}", Outcome.DONE))
        await trail.turns()
        assert trail.recorder.problem() is not None, "it was tried once"
        trail.disk.room_bytes = None
        await trail.pass_ms(recorder_module.RETRY_MS)
        rows = trail.records()[3:]
        assert [row["answers"] for row in rows[:3]] == [2, 3, 4]
        assert [row["operation"] for row in rows[3:]] == ["step 0", "step 1", "step 2"]


async def test_what_was_put_back_stands_before_what_no_group_has_had_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder_module, "GROUP_MAX", 2)
    async with running() as trail:
        recorded = [await trail.recorder.intended(change(name)) for name in "abcde"]
        trail.disk.room_bytes = 0
        for number, each in enumerate(recorded):
            each.ended(Outcome.DONE)
            trail.recorder.record(change(f"step {number}", Outcome.DONE))
        await trail.turns()
        trail.disk.room_bytes = None
        await trail.pass_ms(recorder_module.RETRY_MS)
        rows = trail.records()[5:]
        assert [row["answers"] for row in rows if "answers" in row] == [2, 3, 4, 5, 6]
        steps = [row["operation"] for row in rows if "answers" not in row]
        assert steps == [f"step {number}" for number in range(5)]


async def test_what_a_node_does_by_itself_is_in_its_name() -> None:
    async with running() as trail:
        await trail.recorder.intent(
            AuditEvent(kind=Kind.CHANGE, operation="CreateTopic", outcome=Outcome.INTENDED)
        )
        assert [row["principal"] for row in trail.records()] == ["Node:eu/1"]


@pytest.mark.parametrize(
    ("key", "is_hidden"),
    [
        ("ssl.keystore.key", True), ("ssl-key", True), ("tls_key", True), ("SASL.JAAS.CONFIG", True), ("api.token", True),
        ("private-thing", True), ("db.password", True), ("oauth.secret", True), ("aws.credential", True),
        ("retention.ms", False), ("cleanup.policy", False), ("keys", False),
    ],
)  # fmt: skip
def test_INV_AUD1_values_of_keys_that_sound_like_a_secret_are_hidden(
    key: str, is_hidden: bool
) -> None:
    assert shown_value(key, "x1") == (HIDDEN if is_hidden else "x1")


async def test_refusals_find_no_room_in_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-ARC2."""
    monkeypatch.setattr(recorder_module, "QUEUE_MAX", 3)
    async with running() as trail:
        for number in range(5):
            trail.recorder.refused(ALICE, "READ", "TOPIC", f"t{number}")
        await trail.pass_ms(FLOOD_MS)
        assert trail.recorder.lost["refusal"] == 2


async def test_a_broken_disk_refuses_until_a_restart() -> None:
    async with running() as trail:

        def broken(operation: str, _path: object) -> None:
            if operation == "fdatasync":
                raise OSError(errno.EIO, "Input/output error")

        trail.disk.fault = broken
        with pytest.raises(AuditUnwritable, match="restart the node"):
            await trail.recorder.intent(change())
        trail.disk.fault = None


async def test_equal_refusals_of_a_second_are_one_record_with_a_count() -> None:
    """INV-ATR2."""
    async with running() as trail:
        for number in range(1_000):
            trail.recorder.refused(ALICE, "WRITE", "TOPIC", "orders" if number % 2 else "bills")
        await trail.turns()
        assert trail.records() == []
        await trail.pass_ms(FLOOD_MS)
        found = {row["resource"]: row for row in trail.records()}
        assert {name: row["count"] for name, row in found.items()} == {"orders": 500, "bills": 500}
        assert found["orders"]["operation"] == "WRITE"
        trail.recorder.refused(ALICE, "WRITE", "TOPIC", "orders")
        await trail.pass_ms(FLOOD_MS)
        assert "count" not in trail.records()[-1], "one is one"
        several = AuditEvent(kind=Kind.REFUSAL, operation="READ", outcome=Outcome.REFUSED, actor=Actor.of(ALICE), count=3)  # fmt: skip
        trail.recorder.record(several)
        trail.recorder.record(several)
        await trail.pass_ms(FLOOD_MS)
        assert trail.records()[-1]["count"] == 6


async def test_refusals_are_written_each_second_also_while_changes_keep_the_trail_busy() -> None:
    """INV-ARC2."""
    steps = ["last", "third", "second"]
    async with running() as trail:

        async def while_more_comes(work: Callable[[], None]) -> None:
            work()
            trail.clock.pass_ms(FLOOD_MS)
            if steps:
                trail.recorder.record(change(steps.pop(), Outcome.DONE))

        trail.recorder._offload = while_more_comes
        trail.recorder.refused(ALICE, "WRITE", "TOPIC", "orders")
        trail.recorder.record(change("first", Outcome.DONE))
        await trail.turns()
        written = operations(lines_on(trail.disk))
        assert written.index("WRITE") < written.index("last")


async def test_refusals_for_another_reason_are_another_record() -> None:
    async with running() as trail:
        for reason in ("unknown", "forbidden", "unknown"):
            trail.recorder.refused(ALICE, "GET /metrics", "HTTP", "/metrics", reason=reason)
        await trail.pass_ms(FLOOD_MS)
        counts = {row["reason"]: row.get("count", 1) for row in trail.records()}
        assert counts == {"unknown": 2, "forbidden": 1}


async def test_a_stop_writes_the_refusals_of_its_last_second() -> None:
    """INV-ATR2: only a crash loses them."""
    async with running() as trail:
        trail.recorder.refused(ALICE, "READ", "TOPIC", "orders")
        await trail.turns()
        assert trail.records() == []
    assert [row["operation"] for row in trail.records()] == ["READ"]


async def test_a_stop_says_how_much_a_disk_that_fails_has_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trail = Trail()
    for number in range(3):
        trail.recorder.record(change(f"step {number}", Outcome.DONE))
    trail.disk.room_bytes = 0
    trail.recorder.close()
    assert "3 audit records are lost as the node stops" in caplog.text


async def test_a_flood_of_different_ones_is_counted_not_kept() -> None:
    """INV-ARC2."""
    async with running() as trail:
        for number in range(FLOOD_KINDS_MAX + 300):
            trail.recorder.login(Identity(f"User:u{number}", f"10.9.9.{number % 3}", "PLAIN"), right=False, reason="wrong-credentials")  # fmt: skip
        trail.recorder.peer_refused("Node:us/9", "10.9.9.9", code="other-cluster")
        await trail.pass_ms(FLOOD_MS)
        rows = trail.records()
        logins = [row for row in rows if row["kind"] == "login"]
        assert len(logins) == FLOOD_KINDS_MAX
        assert all((row["outcome"], row["reason"]) == ("refused", "wrong-credentials") for row in logins)  # fmt: skip
        [lost] = [row for row in rows if row["operation"] == "lost"]
        assert lost["details"] == {"login": 300, "peer-refusal": 1}
        assert trail.recorder.lost["login"] == 300
        assert "301 refusals" in verified_on(trail.disk).notes[0]


async def test_INV_ARC5_whoever_floods_the_trail_hides_nobody_else() -> None:
    """A thousand names are tried in a second from one address, and from another: the one that fits is recorded, and so is who else is refused."""
    async with running() as trail:
        for host in ("2001:db8::1", "2001:db8::2"):
            for number in range(FLOOD_OF_ONE_MAX + 5):
                trail.recorder.login(Identity(f"User:u{number}", host, "PLAIN"), right=False, reason="wrong")  # fmt: skip
        trail.recorder.refused(ALICE, "READ", "TOPIC", "orders")
        for number in range(FLOOD_KINDS_MAX):
            trail.recorder.refused(Identity("User:bob", f"10.0.1.{number}"), "READ", "TOPIC", "orders")  # fmt: skip
        for _ in range(3):
            trail.recorder.login(Identity("User:u7", "2001:db8::1", "PLAIN"), right=True)
        await trail.pass_ms(FLOOD_MS)
        rows = trail.records()
        wrong = [row for row in rows if row["kind"] == "login" and row["outcome"] == "refused"]
        assert len(wrong) == FLOOD_OF_ONE_MAX, "a network of 64 bits is one host (INV-PAD1)"
        [right] = [row for row in rows if row["kind"] == "login" and row["outcome"] == "done"]
        assert (right["principal"], right["count"]) == ("User:u7", 3)
        refused = [row for row in rows if row["kind"] == "refusal"]
        assert "User:alice" in {row["principal"] for row in refused}
        assert len(refused) == FLOOD_KINDS_MAX - FLOOD_OF_ONE_MAX
        [lost] = [row for row in rows if row["operation"] == "lost"]
        assert lost["details"] == {"login": FLOOD_OF_ONE_MAX + 10, "refusal": FLOOD_OF_ONE_MAX + 1}  # fmt: skip
        await trail.pass_ms(FLOOD_MS)
        trail.recorder.refused(Identity("User:carol", "2001:db8::1"), "READ", "TOPIC", "orders")
        await trail.pass_ms(FLOOD_MS)
        assert trail.records()[-1]["principal"] == "User:carol", "the next second begins anew"


async def test_INV_ARC5_who_logs_in_rightly_from_everywhere_hides_no_other_login() -> None:
    """1. Somebody has an account, and guesses the password of another. 2. As that comes in he does, too, from each address of his network."""
    async with running() as trail:
        for number in range(FLOOD_KINDS_MAX):
            trail.recorder.login(Identity("User:mallory", f"10.0.1.{number}", "PLAIN"), right=True)
        trail.recorder.login(Identity("User:admin", "10.0.1.7", "PLAIN"), right=True)
        await trail.pass_ms(FLOOD_MS)
        rows = trail.records()
        assert [row["host"] for row in rows if row.get("principal") == "User:admin"] == ["10.0.1.7"]
        [lost] = [row for row in rows if row["operation"] == "lost"]
        assert lost["details"] == {"login": FLOOD_KINDS_MAX - FLOOD_OF_ONE_MAX}


async def test_INV_ARC5_right_logins_of_many_users_are_bounded_together() -> None:
    async with running() as trail:
        for number in range(FLOOD_KINDS_MAX + 3):
            trail.recorder.login(Identity(f"User:u{number}", "10.0.1.7", "PLAIN"), right=True)
        trail.recorder.refused(ALICE, "READ", "TOPIC", "orders")
        await trail.pass_ms(FLOOD_MS)
        kinds = Counter(row["kind"] for row in trail.records())
        assert (kinds["login"], kinds["refusal"]) == (FLOOD_KINDS_MAX, 1)


async def test_beyond_bytes_max_refusals_are_counted_and_changes_recorded() -> None:
    async with running(bytes_max=1) as trail:
        trail.recorder.refused(ALICE, "READ", "TOPIC", "orders")
        for _ in range(4):
            trail.recorder.refused(ALICE, "READ", "TOPIC", "bills")
        await trail.pass_ms(FLOOD_MS)
        await trail.recorder.intent(change())
        assert [row["operation"] for row in trail.records()] == ["CreateTopic", "lost"]
        assert trail.records()[-1]["details"] == {"refusal": 5} == trail.recorder.lost


async def test_texts_of_peers_are_bounded_and_nothing_is_dropped_silently() -> None:
    """INV-AUD1: a line holds what it can, and says how much it left out."""
    async with running() as trail:
        many = [f"{number}" + "\U0001f30a" * 400 for number in range(900)]
        event = AuditEvent(
            kind=Kind.CHANGE, operation="x" * 5_000, outcome=Outcome.INTENDED, resource="\ud800" * 9_000,
            details={"acls_added": many, "left_out": 7, "more": "y" * 100},
        )  # fmt: skip
        await trail.recorder.intent(event)
        [row] = trail.records()
        assert row["resource"].endswith("...(+8700)")
        told = Identity("User:" + "x" * 9_000, "h" * 9_000, "m" * 9_000, token_id="t" * 9_000)
        trail.recorder.refused(told, "READ", reason="r" * 9_000, request_id="q" * 9_000)
        await trail.pass_ms(FLOOD_MS)
        assert max(len(str(value)) for value in trail.records()[1].values()) < 400
        kept = len(row["details"]["acls_added"]) + ("more" in row["details"])
        assert 10 < kept < 901
        assert row["details"]["left_out"] == 7 + 901 - kept, "with what was left out before"


async def test_INV_AUD1_details_are_bounded_as_they_are_written() -> None:
    """A character beyond the basic plane takes twelve in a line: 300 of them in each of 216 names were 778 kB."""
    async with running() as trail:
        event = AuditEvent(
            kind=Kind.CHANGE, operation="DeleteRecords", outcome=Outcome.INTENDED,
            details={"below": [f"{at}" + "\U0001f600" * 290 for at in range(216)], "set x": "\U0001f600" * 200, "y\U0001f600": "z"},
        )  # fmt: skip
        await trail.recorder.intent(event)
        [row] = trail.records()
        assert DETAIL_CHARS_MAX // 2 < len(json.dumps(row["details"])) < DETAIL_CHARS_MAX + 100
        assert row["details"]["left_out"] > 190


async def test_INV_ARC6_so_much_of_a_principal_is_told_at_length_in_a_second() -> None:
    async with running() as trail:
        bob = Actor("User:bob")
        event = AuditEvent(
            kind=Kind.CHANGE, operation="DeleteRecords", outcome=Outcome.INTENDED, actor=bob,
            details={"below": ["x" * 250] * 150},
        )  # fmt: skip
        intents = 0
        while trail.recorder.has_room_for_details("User:bob"):
            await trail.recorder.intent(event)
            intents += 1
        assert intents == 2
        assert trail.recorder.has_room_for_details("User:alice")
        await trail.recorder.intent(event)
        assert trail.records()[-1]["details"] == event.details, "who does not ask is told in full"
        trail.clock.pass_ms(DETAILS_MS)
        assert trail.recorder.has_room_for_details("User:bob")
        for _ in range(3):
            await trail.recorder.intent(msgspec.structs.replace(event, details={}))
        assert trail.recorder.has_room_for_details("User:bob")


async def test_INV_AUD1_texts_that_are_empty_are_bounded_too() -> None:
    """A line that would be longer than a line may be is an error of the trail, with which the node ends."""
    async with running() as trail:
        many = ["\U0001f511"] * DETAIL_CHARS_MAX + [""] * (100_000 - DETAIL_CHARS_MAX)
        event = AuditEvent(
            kind=Kind.CHANGE, operation="DeleteGroups", outcome=Outcome.INTENDED, details={"groups": many},
        )  # fmt: skip
        intent = asyncio.get_running_loop().create_task(trail.recorder.intent(event))
        await trail.turns()
        assert intent.done()
        [row] = trail.records()
        kept = len(row["details"]["groups"])
        assert kept > 1_000
        assert row["details"]["left_out"] == 100_000 - kept


async def test_a_stop_while_the_disk_fails_loses_nothing_that_can_still_be_written() -> None:
    trail, gate = Trail(), asyncio.Event()

    async def fails(_work: Callable[[], None]) -> None:
        await gate.wait()
        raise OSError(errno.ENOSPC, "No space left on device")

    trail.recorder._offload = fails
    running_task = asyncio.get_running_loop().create_task(trail.recorder.run())
    trail.recorder.record(change("third", Outcome.DONE))
    await trail.turns()
    running_task.cancel()
    await trail.turns()
    gate.set()
    await asyncio.wait([running_task])
    trail.recorder.close()
    assert operations(lines_on(trail.disk)) == ["chain-begun", "third"]


async def test_a_stop_while_a_thread_writes_writes_nothing_twice() -> None:
    trail, gate = Trail(), asyncio.Event()

    async def slowly(work: Callable[[], None]) -> None:
        await gate.wait()
        work()

    trail.recorder._offload = slowly
    running_task = asyncio.get_running_loop().create_task(trail.recorder.run())
    trail.recorder.record(change("third", Outcome.DONE))
    await trail.turns()
    running_task.cancel()
    await trail.turns()
    gate.set()
    await asyncio.wait([running_task])
    trail.recorder.close()
    assert operations(lines_on(trail.disk)) == ["chain-begun", "third"]


async def test_a_stop_refuses_who_waits_and_writes_the_rest() -> None:
    trail = Trail()
    loop = asyncio.get_running_loop()
    held: list[Callable[[], None]] = []
    gate = asyncio.Event()

    async def slowly(work: Callable[[], None]) -> None:
        held.append(work)
        await gate.wait()
        work()

    trail.recorder._offload = slowly
    running_task = loop.create_task(trail.recorder.run())
    first = loop.create_task(trail.recorder.intent(change("first")))
    await trail.turns()
    second = loop.create_task(trail.recorder.intent(change("second")))
    trail.recorder.record(change("third", Outcome.DONE))
    await trail.turns()
    running_task.cancel()
    await trail.turns()
    gate.set()
    await asyncio.wait([running_task, first, second])
    assert first.result() == 2, "a thread had begun with it"
    assert isinstance(second.exception(), AuditUnwritable)
    trail.recorder.close()
    assert operations(lines_on(trail.disk)) == ["chain-begun", "first", "third"]
    with pytest.raises(AuditUnwritable, match="stopping"):
        await trail.recorder.intent(change())
