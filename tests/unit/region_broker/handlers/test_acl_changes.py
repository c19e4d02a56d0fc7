"""What CreateAcls and DeleteAcls refuse before anything is changed: AclControlManager.java (`validateNewAcl`), AclApis.scala, KIP-290."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from region_broker.controller.access_commands import ACCESS_CHANGED
from region_broker.controller.refusals import CommandRefused
from region_broker.handlers.access import delete_acls
from region_broker.handlers.access.acl_filters import Malformed, told
from region_broker.handlers.access.create_acls import ACL_TEXT_CHARS_MAX, _acl
from region_broker.handlers.access.delete_acls import OPEN_FILTERS_MAX, handle_delete_acls
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.changing import changed_as_judged
from region_broker.limits import CHANGE_ATTEMPTS, YIELD_ROWS
from region_broker.security.access import (
    NO_ACCESS,
    Access,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.fixtures.judged_apis import ALICE

TOPIC, CLUSTER, ANY, LITERAL, MATCH, READ, ALLOW = 2, 4, 1, 3, 2, 3, 3
GOOD: dict[str, Any] = {
    "resource_type": TOPIC, "resource_pattern_type": LITERAL, "resource_name": "orders", "principal": "User:alice", "host": "*",
    "operation": READ, "permission_type": ALLOW,
}  # fmt: skip
WIDE = SimpleNamespace(
    resource_type_filter=TOPIC, pattern_type_filter=LITERAL, resource_name_filter=None, principal_filter=None,
    host_filter=None, operation=READ, permission_type=ALLOW,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"resource_type": CLUSTER}, "only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_type": ANY}, "resourceType ANY"),
        ({"resource_type": 99}, "99 is no ResourceType"),
        ({"resource_name": ""}, "empty resource name"),
        ({"resource_pattern_type": ANY}, "patternType ANY"),
        ({"resource_pattern_type": MATCH}, "patternType MATCH"),
        ({"operation": ANY}, "operation ANY"),
        ({"permission_type": ANY}, "permissionType ANY"),
        ({"principal": "alice"}, "is no principal"),
        ({"host": ""}, "empty host"),
        *(
            ({name: "User:" + "x" * (ACL_TEXT_CHARS_MAX - 4)}, "characters at most")
            for name in ("resource_name", "principal", "host")
        ),
    ],
)
def test_an_acl_that_makes_no_sense_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        _acl(SimpleNamespace(**GOOD | changed))


def test_what_is_as_long_as_it_may_be_is_taken() -> None:
    longest = "User:" + "x" * (ACL_TEXT_CHARS_MAX - 5)
    assert _acl(SimpleNamespace(**GOOD | {"principal": longest})).principal == longest
    of_cluster = {"resource_type": CLUSTER, "resource_name": "kafka-cluster"}
    assert _acl(SimpleNamespace(**GOOD | of_cluster)).name == "kafka-cluster"


@pytest.mark.parametrize(
    ("count", "error"),
    [(OPEN_FILTERS_MAX, ErrorCode.none), (OPEN_FILTERS_MAX + 1, ErrorCode.invalid_request)],
)
async def test_so_many_filters_look_at_all_acls_and_no_more(count: int, error: ErrorCode) -> None:
    metadata = SimpleNamespace(image=SimpleNamespace(access=NO_ACCESS))
    everybody_may = SimpleNamespace(in_force=True, allows=lambda *_: True)
    services = SimpleNamespace(
        authorizer=everybody_may, metadata=metadata, access_turn=asyncio.Lock()
    )
    ctx = cast("RequestContext", SimpleNamespace(services=services, api_key=31, identity=ALICE))
    answer = await handle_delete_acls(ctx, SimpleNamespace(filters=[WIDE] * count))
    assert [row["error_code"] for row in answer["filter_results"]] == [error] * count


def of_topic(name: str) -> Acl:
    return Acl(ResourceType.TOPIC, PatternType.LITERAL, name, "User:alice", "*", Operation.READ, Permission.ALLOW)  # fmt: skip


ACLS = tuple(of_topic(f"t{at}") for at in range(10))


@pytest.mark.parametrize(("count", "refused"), [(2, False), (3, True)])
async def test_INV_HDA1_filters_that_mean_the_same_acls_again_and_again_are_refused_before_any_goes(
    monkeypatch: pytest.MonkeyPatch, count: int, refused: bool
) -> None:
    monkeypatch.setattr(delete_acls, "TOLD_ACLS_MAX", 2 * len(ACLS))
    gone: list[Acl] = []

    async def change_access(change: AccessChange, _number: int) -> None:
        gone.extend(change.acls_removed)

    access = Access(number=1, acls=ACLS)
    metadata = SimpleNamespace(image=SimpleNamespace(access=access), change_access=change_access)
    services = SimpleNamespace(authorizer=SimpleNamespace(in_force=True, allows=lambda *_: True), metadata=metadata, access_turn=asyncio.Lock())  # fmt: skip
    ctx = cast("RequestContext", SimpleNamespace(services=services, api_key=31, identity=ALICE))
    answer = await handle_delete_acls(ctx, SimpleNamespace(filters=[WIDE] * count))
    results = answer["filter_results"]
    counts = [len(row["matching_acls"]) for row in results]
    if refused:
        assert {row["error_code"] for row in results} == {ErrorCode.invalid_request}
        assert (counts, gone) == ([0] * count, [])
    else:
        assert (counts, tuple(gone)) == ([len(ACLS)] * count, ACLS)


async def test_INV_HW2_what_many_acls_went_is_told_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acls = tuple(of_topic(f"t{at:05}") for at in range(10 * YIELD_ROWS))
    in_this_turn = most = 0

    def telling(acl: Acl) -> Any:
        nonlocal in_this_turn, most
        in_this_turn += 1
        most = max(most, in_this_turn)
        return told(acl)

    async def turning() -> None:
        nonlocal in_this_turn
        while True:
            await asyncio.sleep(0)
            in_this_turn = 0

    async def change_access(*_: object) -> None: ...

    monkeypatch.setattr(delete_acls, "told", telling)
    metadata = SimpleNamespace(image=SimpleNamespace(access=Access(number=1, acls=acls)), change_access=change_access)  # fmt: skip
    services = SimpleNamespace(authorizer=SimpleNamespace(in_force=True, allows=lambda *_: True), metadata=metadata, access_turn=asyncio.Lock())  # fmt: skip
    ctx = cast("RequestContext", SimpleNamespace(services=services, api_key=31, identity=ALICE))
    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(turning())
        answer = await handle_delete_acls(ctx, SimpleNamespace(filters=[WIDE]))
        others.cancel()
    assert len(answer["filter_results"][0]["matching_acls"]) == len(acls)
    assert most <= YIELD_ROWS


@pytest.mark.parametrize("refused_times", [CHANGE_ATTEMPTS - 1, CHANGE_ATTEMPTS])
async def test_INV_TKC1_what_others_come_between_each_time_is_not_answered_as_done(
    refused_times: int,
) -> None:
    tries = 0

    async def change_access(*_: object) -> None:
        nonlocal tries
        tries += 1
        if tries <= refused_times:
            raise CommandRefused(ACCESS_CHANGED, "access was changed meanwhile")

    async def judge(access: Access) -> tuple[AccessChange, str]:
        return AccessChange(), "made"

    metadata = SimpleNamespace(image=SimpleNamespace(access=NO_ACCESS), change_access=change_access)
    services = SimpleNamespace(
        metadata=metadata, access_turn=asyncio.Lock(), tokens_turn=asyncio.Lock()
    )
    found = await changed_as_judged(cast("Any", services), judge)
    assert found == ("made" if refused_times < CHANGE_ATTEMPTS else ErrorCode.request_timed_out)
