"""Requests that destroy something are recorded before, and what is recorded behind is what came of them (INV-DAR1, INV-DAR2)."""

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from typing_extensions import override

from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.audited_requests import handled
from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.audit.events import DETAIL_CHARS_MAX, present_actor
from region_broker.security.audit.trail import AuditUnwritable
from region_broker.security.authorizer import AllowAll
from region_broker.security.identity import Identity
from tests.fixtures.audit_trails import ToldTrail

PARTS = [SimpleNamespace(name="orders", partitions=[SimpleNamespace(partition_index=1, offset=7)])]
ASKED = {
    21: SimpleNamespace(topics=PARTS),
    27: SimpleNamespace(
        markers=[SimpleNamespace(transaction_result=True, producer_id=5, topics=PARTS)]
    ),
    42: SimpleNamespace(groups_names=["billing"]),
    47: SimpleNamespace(group_id="billing", topics=PARTS),
}
DONE: Fields = {"error_code": ErrorCode.none}


def asked_by(trail: ToldTrail, host: str = "10.0.0.1") -> RequestContext:
    """Return the context of a request that came from another node, for a client elsewhere."""
    ctx = SimpleNamespace(
        services=SimpleNamespace(audit=trail, authorizer=AllowAll()), identity=Identity("User:alice", host, "TLS"), host="192.0.2.9",
        request_id="10.0.0.1:5#7",
    )  # fmt: skip
    return cast("RequestContext", ctx)


async def answered(trail: ToldTrail, key: int, answer: Fields | BaseException) -> None:
    async def handle(_ctx: RequestContext, _request: Any) -> Fields:
        assert [each.outcome.value for each in trail.told] == ["intended"]
        assert present_actor().principal == "User:alice"
        if isinstance(answer, BaseException):
            raise answer
        return answer

    ctx, request = asked_by(trail), ASKED[key]
    await handled(all_apis().by_key[key], ctx, request, lambda: handle(ctx, request))


@pytest.mark.parametrize("key", ASKED)
async def test_INV_DAR1_what_destroys_is_recorded_before(key: int) -> None:
    trail = ToldTrail()
    await answered(trail, key, DONE)
    intent, outcome = trail.told
    assert (intent.operation, intent.actor.request_id) == (
        all_apis().by_key[key].name,
        "10.0.0.1:5#7",
    )
    assert intent.resource in {"orders", "billing", "markers"}
    assert (outcome.outcome.value, outcome.answers) == ("done", 1)
    refusing = ToldTrail(refuses="the disk is full")
    with pytest.raises(AuditUnwritable):
        await answered(refusing, key, AssertionError("it was not to be done"))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_not_available, ErrorCode.concurrent_transactions,
    ],
)  # fmt: skip
async def test_INV_DAR2_what_may_have_been_done_is_not_called_refused(code: ErrorCode) -> None:
    trail = ToldTrail()
    await answered(trail, 42, {"results": [{"group_id": "billing", "error_code": code}]})
    assert [(each.outcome.value, each.reason) for each in trail.told[1:]] == [
        ("unknown", code.name)
    ]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), asyncio.CancelledError(), OSError(5, "I/O")]
)
async def test_INV_ARC4_an_intent_has_an_outcome_however_its_request_ends(
    error: BaseException,
) -> None:
    trail = ToldTrail()
    with pytest.raises(type(error)):
        await answered(trail, 42, error)
    assert [each.outcome.value for each in trail.told] == ["intended", "unknown"]


@pytest.mark.parametrize(("host", "told"), [("10.0.0.1", "10.0.0.1"), ("", "192.0.2.9")])
async def test_who_asked_is_told_from_the_clients_own_address(host: str, told: str) -> None:
    """Of a forwarded request that is another one than the connection's."""
    trail = ToldTrail()

    async def handle() -> Fields:
        return DONE

    await handled(all_apis().by_key[42], asked_by(trail, host), ASKED[42], handle)
    assert [each.actor.host for each in trail.told] == [told, told]


@pytest.mark.parametrize("key", [21, 27, 42, 47])
async def test_INV_DAR4_a_record_of_very_long_names_takes_little_memory(key: int) -> None:
    """A name of 32 kB beside each of 100,000 partitions, in a request of half a megabyte, made gigabytes of text."""
    name = "\U0001f600" + "x" * 32_000
    parts = [SimpleNamespace(partition_index=number, offset=7) for number in range(99_000)]
    topics = [SimpleNamespace(name=name, partitions=parts)]
    markers = [SimpleNamespace(transaction_result=True, producer_id=number, topics=topics) for number in range(99_000)]  # fmt: skip
    groups = [f"{number}" + "x" * 300 for number in range(99_000)]
    asked = SimpleNamespace(topics=topics, markers=markers, groups_names=groups, group_id="g")
    trail = ToldTrail()

    async def handle() -> Fields:
        return DONE

    tracemalloc.start()
    try:
        await handled(all_apis().by_key[key], asked_by(trail), asked, handle)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 8 << 20
    details = {**trail.told[0].details}
    left_out = details.pop("left_out")
    (told,) = details.values()
    assert isinstance(told, list)
    assert left_out == 99_000 - len(told), "the recorder adds what has no room then"
    assert DETAIL_CHARS_MAX <= sum(len(row) + 3 for row in told) < DETAIL_CHARS_MAX + 400


@pytest.mark.parametrize("key", ASKED)
async def test_INV_DAR5_what_is_named_again_and_again_is_told_once(key: int) -> None:
    """One partition of one's own, 20,000 times, was a record of 64 kB."""
    trail = ToldTrail()
    (topic,) = PARTS
    topics = [SimpleNamespace(name=topic.name, partitions=topic.partitions * 100)] * 2
    markers = [SimpleNamespace(transaction_result=True, producer_id=5, topics=topics)] * 100
    asked = SimpleNamespace(topics=topics, markers=markers, groups_names=["billing"] * 200, group_id="billing")  # fmt: skip
    await _done(key, asked_by(trail), asked)
    once = ToldTrail()
    await _done(key, asked_by(once), ASKED[key])
    assert trail.told == once.told


@pytest.mark.parametrize("key", ASKED)
async def test_INV_DAR5_who_is_told_of_at_length_already_is_told_as_a_count(key: int) -> None:
    class FullOfAlice(ToldTrail):
        @override
        def has_room_for_details(self, principal: str) -> bool:
            return principal != "User:alice"

    trail = FullOfAlice()
    await _done(key, asked_by(trail), ASKED[key])
    assert [dict(each.details) for each in trail.told] == [{"left_out": 1}] * 2
    assert trail.told[0].resource in {"orders", "billing", "markers"}


async def test_INV_DAR5_of_large_requests_that_come_at_once_one_is_told_of_at_length() -> None:
    """Each goes through what it names a piece at a time: there was room for all of them as they began."""

    class OnceOfAlice(ToldTrail):
        @override
        def has_room_for_details(self, principal: str) -> bool:
            return not self.told

    trail = OnceOfAlice()
    parts = [SimpleNamespace(partition_index=at, offset=7) for at in range(1_500)]
    asked = SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=parts)])
    await asyncio.gather(*(_done(21, asked_by(trail), asked) for _ in range(10)))
    intents = [each.details for each in trail.told if each.outcome.value == "intended"]
    assert len(intents) == 10
    assert sum("left_out" not in each for each in intents) == 1
    assert {each["left_out"] for each in intents if "left_out" in each} == {1_500}


async def _done(key: int, ctx: RequestContext, asked: Any) -> None:
    async def handle() -> Fields:
        return DONE

    await handled(all_apis().by_key[key], ctx, asked, handle)
