"""Every API, every kind of resource, every grant, against Kafka's table: who may is served, who may not is told what Kafka tells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.authorizing import TABLE
from region_broker.handlers.dispatch.operations import OPERATIONS
from region_broker.security.access import Acl, Operation, Permission, ResourceType
from tests.fixtures.judged_apis import (
    DENIED,
    ROOT,
    TOKEN_SECRET,
    Judged,
    acl,
    error_codes,
    judged_apis,
)
from tests.unit.region_broker.handlers.kafka_acl_table import (
    COMMITTED,
    ERROR,
    MEMBER,
    OWNER,
    READ_BY,
    SEEN,
    Case,
    Needed,
    kafka_table,
    token_for,
)
from tests.unit.region_broker.handlers.kafka_documented_needs import (
    DOCUMENTED,
    DOES,
    NOT_SERVED,
    SUPPORTED,
)

METADATA = 3
NO_PLACE_FOR_AN_ERROR = {(35, 1), (35, 2)}
"""DescribeLogDirs before KIP-784: "an empty response will be returned on authorization failure"."""
NOBODY_ELSE_TO_NAME = {(38, 1), (38, 2)}
"""CreateDelegationToken before KIP-373: a token is one's own."""
KINDS = list(ERROR)
NONE, DENY = "none", "deny"
GRANTS: list[str | Operation] = [NONE, DENY, *sorted(set(Operation) - {Operation.ANY})]
Held = dict[ResourceType, str | Operation]
IMPLIES = {
    Operation.READ: Operation.DESCRIBE, Operation.WRITE: Operation.DESCRIBE, Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE, Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}  # fmt: skip


def acls_of(kind: ResourceType, grant: str | Operation) -> Iterator[Acl]:
    if isinstance(grant, Operation):
        yield acl(kind, grant)
    elif grant == DENY:
        yield acl(kind, Operation.ALL)
        yield acl(kind, Operation.ALL, permission=Permission.DENY)


def covers(grant: str | Operation, operation: Operation) -> bool:
    return grant in (operation, Operation.ALL) or (
        isinstance(grant, Operation) and IMPLIES.get(grant) == operation
    )


def expected_error(case: Case, held: Held) -> int:
    """Return Kafka's error for who holds these grants, 0 where the request is served."""

    def has(need: Needed) -> bool:
        return covers(held[need.kind], need.operation)

    for alternatives in case.needs:
        if not any(map(has, alternatives)):
            return ERROR[alternatives[-1].kind]
    return 0


async def prepared(judged: Judged) -> None:
    """Have a group and a transactional id that lists can show, and topics that collide."""
    await judged.ask(8, 9, {**MEMBER, "group_id": "simple", "member_id": "", "generation_id_or_member_epoch": -1, "topics": COMMITTED}, who=ROOT)  # fmt: skip
    made = await judged.ask(22, 5, {"transactional_id": SEEN, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}, who=ROOT)  # fmt: skip
    await judged.ask(24, 3, {"v3_and_below_transactional_id": SEEN, "v3_and_below_producer_id": made.producer_id,
        "v3_and_below_producer_epoch": made.producer_epoch, "v3_and_below_topics": [{"name": "orders", "partitions": (0,)}]}, who=ROOT)  # fmt: skip
    await judged.ask(68, 1, {**MEMBER, "group_id": READ_BY, "member_id": "reader", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 300_000, "subscribed_topic_names": ("orders",), "subscribed_topic_regex": None, "server_assignor": None,
        "topic_partitions": ()}, who=ROOT)  # fmt: skip
    await judged.ask(38, 3, token_for(OWNER), who=ROOT)
    await judged.wire.topic("col_lides")
    judged.wire.config.auto_create_topics = True


def grants_of(case: Case) -> Iterator[tuple[ResourceType, str | Operation, str | Operation]]:
    """Yield each grant on each kind of resource, and what is held of all others: nothing, and all; the latter of what is not needed with none and deny alone."""
    needed = {need.kind for needs in case.needs for need in needs}
    for kind in KINDS:
        for grant in GRANTS:
            yield kind, grant, NONE
            if kind in needed or grant in (NONE, DENY):
                yield kind, grant, Operation.ALL


def rows_of(judged: Judged) -> dict[int, list[Case]]:
    """Return Kafka's table for what is prepared."""
    image = judged.services.metadata.image
    [token] = [each for each in image.access.tokens if each.owner == f"User:{OWNER}"]
    return kafka_table(image.topics["orders"].topic_id, TOKEN_SECRET.hmac_of(token.token_id))


async def check(judged: Judged, case: Case, key: int, held: Held) -> None:  # fmt: skip
    judged.give(*(each for kind, grant in held.items() for each in acls_of(kind, grant)))
    judged.told.clear()
    answer = await judged.ask(key, case.version, case.values)
    error, shown = expected_error(case, held), {str(kind.name): str(grant) for kind, grant in held.items()}  # fmt: skip
    codes = error_codes(answer) & DENIED
    if case.hides:
        assert case.is_shown(answer) is not bool(error), (key, case.what, shown)
        return
    assert codes == ({error} if error else set()), (key, case.what, shown, answer)
    assert bool(judged.told) is bool(codes - case.untold), (key, case.what, shown, judged.told)
    assert len(judged.told) == len(set(judged.told)), (key, case.what, "each refusal is told once")


async def test_every_api_judges_every_kind_of_resource_as_kafka_does(tmp_path: Path) -> None:
    async with judged_apis(tmp_path) as judged:
        judged.give(acl(ResourceType.TOPIC, Operation.ALL, who="User:carol"))
        await prepared(judged)
        table, served = rows_of(judged), all_apis().by_key
        assert served.keys() <= table.keys(), "an API without a row of Kafka's table"
        for key, cases in ((key, table[key]) for key in served):
            for case in cases:
                for kind, grant, others in grants_of(case):
                    held = {each: grant if each is kind else others for each in KINDS}
                    await check(judged, case, key, held)


def test_what_the_code_says_of_an_api_is_what_kafkas_table_says() -> None:
    """Both tables name the same operations and resources, so that the one that is documented is the one that is tested."""
    for key, cases in kafka_table(UUID(int=1)).items():
        row = TABLE[key]
        ours = {tuple(need) for part in (row.whole, row.each, row.left_out) for needs in part for need in needs}  # fmt: skip
        theirs = {tuple(need) for case in cases for needs in case.needs for need in needs}
        assert theirs <= ours, key
        assert ours or row.why_open, key


def test_the_table_has_every_row_that_kafka_documents() -> None:
    """Row by row, but for what Kafka 4.1 does otherwise than it documents, which says why; and each API is a row, or is not served."""
    table, served = kafka_table(UUID(int=1)), all_apis().by_key
    assert not NOT_SERVED & served.keys()
    assert served.keys() == (DOCUMENTED.keys() | DOES.keys()) - NOT_SERVED
    for key in served:
        _, unasked, further = DOES.get(key, ("", frozenset(), frozenset()))
        documented = DOCUMENTED.get(key, frozenset())
        assert unasked <= documented, key
        assert not further & documented, key
        tested = {need for case in table[key] for needs in case.needs for need in needs}
        assert tested == (documented - unasked) | further, key


def test_what_can_be_done_with_a_resource_is_what_kafka_says() -> None:
    assert {kind: frozenset(of_kind) for kind, of_kind in OPERATIONS.items()} == SUPPORTED


def with_ids(values: Any, orders: UUID) -> Any:
    """Return a request that names topics by their ids, too: a version writes what it has."""
    if isinstance(values, dict):
        named = {"topic_id": orders} if values.get("name") == "orders" else {}
        return {**{key: with_ids(each, orders) for key, each in values.items()}, **named}
    return [with_ids(each, orders) for each in values] if isinstance(values, list) else values


async def test_who_may_nothing_is_refused_in_every_version(tmp_path: Path) -> None:
    async with judged_apis(tmp_path) as judged:
        judged.give(acl(ResourceType.TOPIC, Operation.ALL, who="User:carol"))
        await prepared(judged)
        orders = judged.services.metadata.image.topics["orders"].topic_id
        for key, cases in rows_of(judged).items():
            asked = [case for case in cases if case.needs and not case.hides]
            values: dict[str, Any] = {}
            for case in reversed(asked):
                values |= case.values
            api = all_apis().by_key.get(key)
            for version in api.versions if asked and api is not None else ():
                asks = values if key == METADATA else with_ids(values, orders)
                answer = await judged.ask(key, version, asks)
                if (key, version) in NO_PLACE_FOR_AN_ERROR:
                    assert "orders" not in str(answer)
                elif (key, version) in NOBODY_ELSE_TO_NAME:
                    assert not error_codes(answer) & DENIED, (key, version, answer)
                else:
                    assert error_codes(answer) & DENIED, (key, version, answer)
