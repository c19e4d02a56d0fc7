"""The door of the HTTP port over real sockets: who gets in, who does not, and what that one is told."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, encode_basic_auth, web
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client import CollectorRegistry

from idempotency.identity import TopicName, TopicPartition
from idempotency.ledger_records import TxnStatus
from region_broker.http_api import doors as doors_module
from region_broker.http_api import password_checks
from region_broker.http_api.app import DEFAULT_LIMITS, HttpServer, bounded, make_app
from region_broker.http_api.doors import SHOWN_MAX, TOLD_MAX, TOLD_WITHIN_MS, Doors, Passed, shown
from region_broker.http_api.needs import NEEDS, NO_ROUTE, UNKNOWN_ROUTE, brief_region, need_of
from region_broker.http_api.password_checks import (
    ADDRESSES_MAX,
    DELAY_MS_MAX,
    PENDING_MAX,
    WAITING_MAX,
    PasswordChecks,
    SlowRefusals,
    TooManyLogins,
)
from region_broker.http_api.ports import RegionApi
from region_broker.http_api.routes_cluster import ClusterApi, add_cluster_routes
from region_broker.http_api.routes_transactions import add_transaction_routes
from region_broker.http_api.waiting import Waiting, waiting_app
from region_broker.node import Node
from region_broker.node.http_doors import DoorCollector, doors_of, told_to
from region_broker.ports.system.chance import SystemChance
from region_broker.security.access import Access, Operation, ResourceType, ScramKeys
from region_broker.security.audit.events import AuditEvent, Kind
from region_broker.security.audit.trail import AuditTrail
from region_broker.security.http_tokens import HttpTokens, Role, file_of, made_token
from region_broker.security.identity import Identity
from region_broker.security.sasl.desk import LoginDesk, LoginSettings
from region_broker.security.sasl.scram import HASHES
from tests.fixtures.certificates import node_certificate, put, user_certificate
from tests.fixtures.failover_regions import free_ports
from tests.fixtures.scram_users import access_of, rfc_keys, scram_keys
from tests.fixtures.waiting import until
from tests.unit.region_broker.test_start_checks import PORTS, config_of

CHANCE = SystemChance()
TOKENS = {role: made_token(role.value, role, CHANCE, 1) for role in Role}


class Hurried:
    """A clock whose sleeps end at once, or when they are let go; wall time is 1,000,000."""

    def __init__(self, *, holds: bool = False) -> None:
        self.now_ms = 0
        self.slept: list[float] = []
        self.all_held = asyncio.Event()
        self.let_go = asyncio.Event()
        if not holds:
            self.let_go.set()

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        self.slept.append(duration_ms)
        if len(self.slept) == PENDING_MAX:
            self.all_held.set()
        await self.let_go.wait()


class Region:
    """A region that says little, and takes every order."""

    region, domain, refusal = "eu", "main", ValueError
    ordered: list[str]

    def __init__(self) -> None:
        self.ordered = []
        self.described = 0

    def describe_in_brief(self) -> dict[str, Any]:
        peer = {"region": "us", "kafka": "us:9092", "http": "http://us:9093", "acts": False, "nodes": ["secret"]}  # fmt: skip
        return {
            "region": "eu", "acting": True, "region_epoch": 8, "reason_not_acting": "", "primary_region": "eu", "peers": [peer]
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        self.described += 1
        return {
            **self.describe_in_brief(), "domain": "main", "tidemark": {"number": 1, "age_ms": 1}, "waits_for": "",
            "runs_twice": {}, "diverged_records": 0, "link": {"state": None, "age_ms": None}, "lag": {},
        }  # fmt: skip

    async def topics(self) -> list[dict[str, Any]]:
        self.described += 1
        return [{"topic": "orders"}]

    def not_ready(self) -> str | None:
        return None

    def remark(self) -> str:
        return "the other region is silent"

    def not_leading(self) -> None:
        return None

    def begin_switch(self) -> dict[str, Any]:
        self.ordered.append("switch")
        return {"operation_id": "1"}


class Acls:
    """Alice may describe topic `orders`, and alter the cluster; nobody else may do anything."""

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        alices = {
            (Operation.DESCRIBE, ResourceType.TOPIC, "orders"),
            (Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"),
        }
        return identity.principal == "User:user" and (operation, resource_type, name) in alices


class Guarded:
    """A node's routes behind a door."""

    def __init__(self, url: str, region: Region, doors: Doors, http: ClientSession) -> None:
        self.url, self.region, self.doors, self._http = url, region, doors, http
        self.passed: list[Passed] = []
        doors.on_passed = self.passed.append

    async def ask(
        self, path: str, method: str = "GET", token: str = "", auth: tuple[str, str] | None = None, **headers: str
    ) -> tuple[int, Any, Any]:  # fmt: skip
        """Return status, JSON (or text) and headers."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if auth is not None:
            headers["Authorization"] = encode_basic_auth(*auth)
        body = {"to": "eu"} if method == "POST" else None
        async with self._http.request(
            method, self.url + path, headers=headers, json=body, allow_redirects=False
        ) as found:
            said = await (
                found.json(content_type=None) if "json" in found.content_type else found.text()
            )
            return found.status, said, found.headers


def desk_of(access: Callable[[], Access]) -> LoginDesk:
    return LoginDesk(LoginSettings(mechanisms=tuple(HASHES)), access, PORTS.clock, CHANCE)


def doors_with(access: Access | None = None, **more: Any) -> Doors:
    rows = [row for _, row in TOKENS.values()]
    said: list[bytes | None] = [file_of(rows)]
    tokens = HttpTokens(lambda: said.pop() if said else None, lambda _why: None)
    passwords = PasswordChecks(
        desk_of(lambda: access or access_of(rfc_keys())).keys_for_password, CHANCE
    )
    clock = more.pop("clock", None) or Hurried()
    return Doors(clock=clock, is_closed=True, tokens=tokens, passwords=passwords, **more)


@asynccontextmanager
async def behind(doors: Doors, transactions: Any = None) -> AsyncIterator[Guarded]:
    region = Region()
    app = make_app(
        cast("RegionApi", region), {}, CollectorRegistry(), doors=doors, warning=lambda: "beware"
    )

    async def verdict(request: web.Request) -> web.Response:
        return web.json_response({"verdict": request.query["topic"]})

    async def fails(_request: web.Request) -> web.Response:
        raise ValueError

    if transactions is None:
        app.router.add_get("/v1/verdict", verdict)
    else:
        acting, ledger = transactions
        add_transaction_routes(app, acting, ledger, lambda: 1)
    app.router.add_get("/fails/{what}", fails)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    async with ClientSession() as http:
        yield Guarded(f"http://{host}:{port}", region, doors, http)
    await server.stop()


async def test_INV_HND1_every_route_has_a_row_and_every_row_a_route(tmp_path: Path) -> None:
    node = await Node.open(config_of(tmp_path, free_ports(3)), PORTS)
    several = bounded(DEFAULT_LIMITS)
    add_cluster_routes(several, cast("ClusterApi", None))
    waits = waiting_app(Waiting(region="eu", reason=str, without_leader_ms=int))
    routes = {
        (route.method, "" if route.resource is None else route.resource.canonical)
        for app in (node._app, several, waits)
        for route in app.router.routes()
        if route.method != "HEAD"  # aiohttp's, beside each GET
    }
    await node.storage.close()
    assert routes == set(NEEDS) - {("*", NO_ROUTE)}
    assert need_of("PUT", "/v1/new") == UNKNOWN_ROUTE == need_of("POST", "/livez")
    assert need_of("HEAD", "/metrics") == need_of("GET", "/metrics")


def test_INV_HND1_what_is_not_in_the_table_is_for_administrators() -> None:
    for method, path in (("GET", "/v1/forgotten"), ("DELETE", "/v1/region"), ("POST", "/metrics")):
        assert need_of(method, path).role is Role.ADMIN


@pytest.mark.parametrize(
    ("role", "operation", "paths"),
    [
        (Role.OPERATOR, Operation.ALTER, (
            "region/switch", "region/failover", "cluster/drain", "cluster/elect", "cluster/spread", "cluster/gather",
            "transactions/abort",
        )),
        (Role.ADMIN, Operation.ALTER, (
            "region/accept-loss", "cluster/unclean-election", "cluster/remove", "cluster/nodes", "features",
        )),
    ],
)  # fmt: skip
def test_INV_HND2_orders_need_what_the_reference_says(
    role: Role, operation: Operation, paths: tuple[str, ...]
) -> None:
    """docs/reference/security.md, the table of routes."""
    for path in paths:
        need = need_of("POST", f"/v1/{path}")
        assert (need.role, need.operation, need.of, need.in_brief) == (role, operation, ResourceType.CLUSTER, False), path  # fmt: skip


def test_INV_HND2_of_a_transaction_who_may_describe_its_id_may_ask() -> None:
    need = need_of("GET", "/v1/transactions")
    assert (need.role, need.operation) == (Role.READER, Operation.DESCRIBE)
    asked = need.resource({"transactional_id": "t-1"})
    assert asked == (ResourceType.TRANSACTIONAL_ID, "t-1")
    assert need.resource({}) == (ResourceType.CLUSTER, "kafka-cluster"), "of all of them"


class OfOneId(Acls):
    """The user may describe transactional id `t-1`, and topic `orders`."""

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        is_id = (resource_type, name) == (ResourceType.TRANSACTIONAL_ID, "t-1")
        is_orders = (resource_type, name) == (ResourceType.TOPIC, "orders")
        return identity.principal == "User:user" and operation is Operation.DESCRIBE and (is_id or is_orders)  # fmt: skip


async def test_INV_HND4_of_a_transaction_topics_are_left_out_that_may_not_be_seen() -> None:
    """As DescribeTransactions leaves them out."""
    places = tuple(TopicPartition(TopicName(topic), 1) for topic in ("orders", "payroll"))
    record = SimpleNamespace(
        transactional_id="t-1", status=TxnStatus.ONGOING, producer_id=4, producer_epoch=2, last_producer_epoch=-1, previous_producer_id=-1, partitions=places,
        timeout_ms=60_000, start_ms=5, last_update_ms=7, region_epoch=8,
    )  # fmt: skip
    acts = SimpleNamespace(refusal=ValueError, check_acting=lambda: None)
    ledger = SimpleNamespace(describe=lambda _id: record)
    async with behind(doors_with(authorizer=OfOneId()), (acts, ledger)) as node:
        path = "/v1/transactions?transactional_id=t-1"
        status, said, _ = await node.ask(path, auth=("user", "pencil"))
        assert (status, said["transactions"][0]["partitions"]) == (200, ["orders-1"])
        status, said, _ = await node.ask(path, token=TOKENS[Role.READER][0])
        assert said["transactions"][0]["partitions"] == ["orders-1", "payroll-1"]


def test_INV_HND3_of_peers_a_client_learns_where_it_meets_them_and_whether_they_act() -> None:
    peer = {"region": "us", "kafka": "us:9092", "http": "http://us:9093", "acts": False}
    told = brief_region({"region": "eu", "peers": [{**peer, "peer": "us:9094", "reachable": True, "error": "why"}]})  # fmt: skip
    assert told == {"in_brief": True, "region": "eu", "peers": [peer]}


async def test_INV_HDO1_who_is_unknown_learns_that_it_lives_and_whether_it_is_ready() -> None:
    async with behind(doors_with()) as node:
        assert (await node.ask("/livez"))[:2] == (200, {"status": "alive"})
        assert (await node.ask("/readyz"))[:2] == (200, {"status": "ready"}), "INV-HTM2"
        orders = ("failover", "switch", "accept-loss")
        for method, path in (
            ("GET", "/metrics"), ("GET", "/v1/region"), ("GET", "/v1/verdict?topic=orders"), ("GET", "/none"), ("DELETE", "/livez"),
            ("GET", "/v1/%2e%2e/metrics"), ("GET", "//metrics"), *(("POST", f"/v1/region/{order}") for order in orders),
        ):  # fmt: skip
            status, said, headers = await node.ask(path, method)
            assert (status, said["code"]) == (401, "unknown-caller"), path
            assert headers.getall("WWW-Authenticate")[0].startswith("Bearer")
        assert node.region.ordered == []


@pytest.mark.parametrize(
    ("role", "statuses"),
    [
        (Role.METRICS, (200, 200, 403, 403, 404)),
        (Role.READER, (200, 200, 200, 403, 404)),
        (Role.OPERATOR, (200, 200, 200, 202, 404)),
        (Role.ADMIN, (200, 200, 200, 202, 404)),
    ],
)
async def test_INV_HND2_a_token_may_what_its_role_covers(
    role: Role, statuses: tuple[int, ...]
) -> None:
    async with behind(doors_with()) as node:
        token, _ = TOKENS[role]
        found = [
            (await node.ask(path, method, token))[0]
            for method, path in (
                ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/v1/verdict?topic=t"), ("POST", "/v1/region/switch"), ("GET", "/none"),
            )
        ]  # fmt: skip
        assert tuple(found) == statuses
        assert node.region.ordered == (["switch"] if 202 in statuses else [])
        assert node.passed[-1].identity == Identity(f"Token:{role}", "127.0.0.1", "TOKEN")


async def test_INV_HND3_details_are_for_those_who_may_see_them() -> None:
    async with behind(doors_with(authorizer=Acls())) as node:
        status, said, _ = await node.ask("/readyz", token=TOKENS[Role.METRICS][0])
        assert (status, said["warning"], said["checks"]) == (200, "beware", {"region": "ok"})
        _, said, _ = await node.ask("/v1/region", auth=("user", "pencil"))
        assert said == {
            "in_brief": True, "region": "eu", "acting": True, "region_epoch": 8, "reason_not_acting": "",
            "peers": [{"region": "us", "kafka": "us:9092", "http": "http://us:9093", "acts": False}],
        }  # fmt: skip
        _, said, _ = await node.ask("/v1/region", token=TOKENS[Role.READER][0])
        assert said["topics"] == [{"topic": "orders"}]


async def test_INV_HND5_whoever_has_a_password_and_no_right_makes_nothing_look_at_the_logs() -> (
    None
):
    async with behind(doors_with(authorizer=Acls())) as node:
        before = node.region.described
        _, said, _ = await node.ask("/v1/region", auth=("user", "pencil"))
        assert said["in_brief"]
        assert node.region.described == before


async def held_order(node: Guarded, authorization: str, meanwhile: Callable[[], None]) -> bytes:
    """Return the answer to an order whose body comes only after it was let in, and something else happened."""
    address = urlsplit(node.url)
    assert address.hostname is not None
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"POST /v1/region/switch HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: {authorization}\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 11\r\n\r\n".encode()
    )
    await until(lambda: len(node.passed) == 1)
    meanwhile()
    writer.write(b'{"to":"eu"}')
    answer = await reader.read()
    writer.close()
    return answer


async def test_INV_HDO6_who_may_not_order_any_more_when_the_body_comes_orders_nothing() -> None:
    """1. An operator begins an order, and keeps its body back. 2. The right goes; or the token; or the user. 3. The body comes."""
    basic = encode_basic_auth("user", "pencil")
    bearer = f"Bearer {TOKENS[Role.OPERATOR][0]}"
    acls, present, row = Acls(), [access_of(rfc_keys())], TOKENS[Role.OPERATOR][1]
    rows = [file_of([row])]
    tokens = HttpTokens(lambda: rows.pop() if rows else None, lambda _why: None)

    def rights_go() -> None:
        acls.allows = lambda *_asked: False  # type: ignore[method-assign]

    for authorization, meanwhile, status in (
        (basic, rights_go, b"403"),
        (basic, present.clear, b"401"),
        (bearer, lambda: None, b"202"),
        (bearer, lambda: rows.append(file_of([])), b"401"),
    ):
        acls = Acls()
        passwords = PasswordChecks(desk_of(lambda: present[0] if present else Access()).keys_for_password, CHANCE)  # fmt: skip
        doors = doors_with(authorizer=acls)
        doors.passwords, doors.tokens = passwords, tokens
        async with behind(doors) as node:
            answer = await held_order(node, authorization, meanwhile)
            assert answer.split()[1] == status, answer
            assert node.region.ordered == (["switch"] if status == b"202" else [])
            refused = {b"403": "forbidden", b"401": "unknown", b"202": ""}[status]
            assert node.passed[-1].refused == refused


async def test_INV_HND2_a_user_may_what_acls_allow() -> None:
    async with behind(doors_with(authorizer=Acls())) as node:
        alice = ("user", "pencil")
        assert (await node.ask("/v1/verdict?topic=orders", auth=alice))[:2] == (
            200,
            {"verdict": "orders"},
        )
        for path in (
            "/v1/verdict?topic=other",
            "/v1/verdict?topic=other&topic=orders",
            "/v1/verdict",
            "/metrics",
        ):
            status, said, _ = await node.ask(path, auth=alice)
            assert (status, said["code"]) == (403, "forbidden"), path
            assert "orders" not in str(said)
        assert (await node.ask("/v1/region/switch", "POST", auth=alice))[0] == 202


async def test_INV_HND2_a_user_is_judged_by_the_whole_name_however_long_that_is() -> None:
    """Logs show the beginning of it (INV-HDO5): who is called nearly as somebody else is not taken for that one."""
    long, longer = "a" * SHOWN_MAX, "a" * 249
    access = access_of(scram_keys(long, "p"), scram_keys(longer, "p"))

    class ForLong:
        def allows(
            self, identity: Identity, _what: Operation, _type: ResourceType, _name: str
        ) -> bool:
            return identity.principal == f"User:{long}"

    async with behind(doors_with(access, authorizer=ForLong())) as node:
        assert (await node.ask("/metrics", auth=(long, "p")))[0] == 200
        assert (await node.ask("/metrics", auth=(longer, "p")))[0] == 403
        assert node.passed[-1].identity.principal == f"User:{longer}"


async def test_INV_HDO2_wrong_credentials_are_one_answer_and_slow() -> None:
    clock = Hurried()
    async with behind(doors_with(clock=clock)) as node:
        right = TOKENS[Role.ADMIN][0]
        said = [
            (await node.ask("/metrics", **case))[:2]
            for case in (
                {"auth": ("user", "wrong")}, {"auth": ("nobody", "pencil")}, {"token": right[:-1]},
                {"token": "tmt_" + "0" * 12 + "_" + "a" * 43}, {"Authorization": "Basic !!"}, {"Authorization": "Negotiate abc"},
                {"Authorization": "Basic dXNlcg=="}, {"Authorization": ""}, {"Authorization": "Bearer " + "x" * 7000},
            )
        ]  # fmt: skip
        assert all(each == said[0] for each in said)
        assert said[0][0] == 401
        assert clock.slept == [100, 200, 400, 800, 1600, 3000, 3000, 3000, 3000]
        assert (await node.ask("/livez", token="no"))[0] == 401, (
            "a wrong one is told wherever it is shown"
        )


async def test_INV_HPC2_an_address_whose_refusals_wait_is_asked_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(password_checks, "PENDING_MAX", 1)
    clock = Hurried(holds=True)
    passed, counted = list[Passed](), list[str]()
    async with behind(doors_with(clock=clock)) as node:
        node.doors.on_passed, node.doors.on_refused = passed.append, counted.append
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(node.ask("/metrics", token="no"))
            await until(lambda: bool(clock.slept), "its refusal waits")
            status, said, headers = await node.ask("/metrics", auth=("mallory", "guess"))
            assert (status, said["code"], headers["Retry-After"]) == (503, "too-many-logins", "1")
            assert counted == ["too-many-logins"]
            (refused,) = passed
            assert (refused.identity.principal, refused.refused) == ("User:mallory", counted[0])
            assert (await node.ask("/metrics", token=TOKENS[Role.ADMIN][0]))[0] == 200
            assert (await node.ask("/livez"))[0] == 200, "who shows nothing is no guesser"
            clock.let_go.set()
        assert first.result()[0] == 401


async def test_wrong_logins_and_refusals_are_told_to_the_audit_trail() -> None:
    class Kept(AuditTrail):
        is_on = True

        def __init__(self) -> None:
            self.events: list[AuditEvent] = []

        def record(self, event: AuditEvent) -> None:
            self.events.append(event)

    trail = Kept()
    async with behind(doors_with(authorizer=Acls())) as node:
        node.doors.on_passed = told_to(trail)
        node.doors.on_passed(
            Passed(Identity("User:eve", mechanism="BASIC"), "GET", "/", "too-many-logins")
        )
        await node.ask("/metrics", auth=("mal\nlory", "open-sesame"))
        await node.ask("/metrics", token="tmt_wrong")
        await node.ask("/metrics")
        await node.ask("/metrics", auth=("user", "pencil"))
        await node.ask("/v1/verdict?topic=orders", auth=("user", "pencil"))
    told = [
        (each.kind, each.actor.principal, each.actor.mechanism, each.reason)
        for each in trail.events
    ]
    assert told == [
        (Kind.LOGIN, "User:eve", "BASIC", "too-many-logins"),
        (Kind.LOGIN, "User:mal?lory", "BASIC", "wrong-credentials"), (Kind.LOGIN, "User:ANONYMOUS", "TOKEN", "wrong-credentials"),
        (Kind.REFUSAL, "User:ANONYMOUS", "", "unknown"), (Kind.REFUSAL, "User:user", "BASIC", "forbidden"),
    ]  # fmt: skip
    assert "open-sesame" not in repr(trail.events)
    assert "tmt_wrong" not in repr(trail.events)


async def test_INV_HDO3_a_password_is_not_taken_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind(doors_with()) as node:
        assert (await node.ask("/metrics", auth=("user", "pencil")))[0] == 200
        with monkeypatch.context() as afar:
            afar.setattr(doors_module, "is_this_machine", lambda _host: False)
            assert (await node.ask("/metrics", auth=("user", "pencil")))[0] == 401
    far = [scope for scope in ("10.0.0.1", "203.0.113.9", "") if _is_private_from(scope)]
    assert far == []
    assert _is_private_from("::1")
    assert _is_private_from("10.0.0.1", secure=True), "nobody reads what TLS carries"


def _is_private_from(host: str, *, secure: bool = False) -> bool:
    return doors_module._is_private(cast("web.Request", SimpleNamespace(secure=secure)), host)


async def test_INV_HDO4_orders_from_pages_of_others_are_refused() -> None:
    async with behind(doors_with()) as node:
        admin = TOKENS[Role.ADMIN][0]
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://[::1"},  # no address: it was an error of the node
            {"Origin": node.url.replace("://", "://evil-")},  # its name ends with this one's
            {"Origin": node.url.rpartition(":")[0]},  # another port of this host
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},  # another host of the same domain
        ):
            status, said, answered = await node.ask(
                "/v1/region/switch", "POST", admin, None, **headers
            )
            assert (status, said["code"]) == (403, "cross-site")
            assert "Access-Control-Allow-Origin" not in answered
            assert "Set-Cookie" not in answered
        assert node.region.ordered == []
        assert (await node.ask("/v1/region/switch", "POST", admin, Origin=node.url))[0] == 202


async def test_INV_HDO5_what_a_caller_sends_cannot_write_lines_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with behind(doors_with()) as node:
        await node.ask("/a%0a%0dlevel=info%1b[31m" + "b" * 3000)
        await node.ask("/fails/x%0ay", token=TOKENS[Role.ADMIN][0])
    lines = [record.getMessage() for record in caplog.records if record.name == "tidemark.http"]
    assert len(lines) == 2
    assert not [line for line in lines if any(ord(letter) < 32 for letter in line)]
    assert all(len(line) < SHOWN_MAX + 100 for line in lines)
    clock = Hurried()
    caplog.clear()
    async with behind(doors_with(clock=clock)) as node:
        for _ in range(TOLD_MAX + 5):
            await node.ask("/metrics")
        assert len(caplog.records) == TOLD_MAX
        clock.now_ms += TOLD_WITHIN_MS + 1
        _, _, headers = await node.ask("/metrics")
        assert headers["Server"] == "tidemark"
        assert [record.getMessage() for record in caplog.records][
            TOLD_MAX
        ] == "5 more requests were refused"
    assert shown("a\u2028b\x7f\x00c") == "a?b??c"
    for token, _ in TOKENS.values():
        assert token[-43:] not in caplog.text


async def test_certificates_name_their_holders() -> None:
    class Tls:
        def getpeercert(self, *, binary_form: bool) -> bytes | None:
            return b"der" if binary_form else None

    transport = SimpleNamespace(get_extra_info=lambda name: Tls() if name == "ssl_object" else None)
    request = cast("web.Request", SimpleNamespace(transport=transport))
    named = Doors(principal_of=lambda der: f"User:{der.decode()}")
    assert doors_module._certified(request, named, "h").identity == Identity("User:der", "h", "TLS")
    assert doors_module._certified(request, Doors(), "h").identity.is_anonymous


async def test_an_open_door_lets_everybody_in_whom_acls_do() -> None:
    async with behind(Doors()) as node:
        assert (await node.ask("/metrics"))[0] == 200
        assert (await node.ask("/none"))[0] == 404
        assert (await node.ask("/v1/region/switch", "POST"))[0] == 202
    async with behind(Doors(authorizer=Acls())) as node:
        assert (await node.ask("/metrics"))[0] == 401


async def test_a_node_that_waits_has_the_same_door() -> None:
    waiting = Waiting(region="eu", reason=lambda: "nobody leads", without_leader_ms=int)
    server = HttpServer(waiting_app(waiting, doors_with(), warning=lambda: "beware"))
    host, port = await server.start("127.0.0.1", 0)
    async with ClientSession() as http:
        node = Guarded(f"http://{host}:{port}", Region(), Doors(), http)
        assert (await node.ask("/readyz"))[:2] == (503, {"status": "not ready"})
        for path in ("/v1/region", "/metrics", "/none"):
            assert (await node.ask(path))[0] == 401
        assert (await node.ask("/v1/region/switch", "POST"))[0] == 401
        reader = TOKENS[Role.READER][0]
        assert (await node.ask("/v1/region", token=reader))[1]["code"] == "node-waits"
        assert (await node.ask("/readyz", token=reader))[1]["checks"] == {"joined": "nobody leads"}
    await server.stop()


async def test_INV_HPC1_checks_are_few_at_once_and_others_wait_or_are_refused() -> None:
    begun, go = 0, asyncio.Event()

    async def offload(work: Any) -> None:
        nonlocal begun
        begun += 1
        await go.wait()
        work()

    checks = PasswordChecks(
        desk_of(lambda: access_of(rfc_keys())).keys_for_password, CHANCE, offload
    )
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(checks.proves("user", f"p{n}")) for n in range(WAITING_MAX)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert begun == 2
        with pytest.raises(TooManyLogins):
            await checks.proves("user", "pencil")
        go.set()
    assert not any(task.result() for task in asked)


async def test_INV_HPC1_who_has_gone_while_he_waited_takes_no_place() -> None:
    go = asyncio.Event()

    async def offload(work: Any) -> None:
        await go.wait()
        work()

    checks = PasswordChecks(
        desk_of(lambda: access_of(rfc_keys())).keys_for_password, CHANCE, offload
    )
    for _ in range(2):
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(checks.proves("user", f"p{n}")) for n in range(WAITING_MAX)]
            await asyncio.sleep(0)
            for task in asked:
                task.cancel()
    go.set()
    assert await checks.proves("user", "pencil")


async def wrong() -> bool:
    return False


async def right() -> bool:
    return True


async def test_INV_HPC2_an_address_is_slowed_by_itself_alone() -> None:
    clock = Hurried(holds=True)
    slow = SlowRefusals(clock)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for _ in range(PENDING_MAX):
            tasks.create_task(slow.judged("2001:db8::1", wrong))
            await asyncio.sleep(0)
        for same in ("2001:db8::1", "2001:db8::ffff:1"):
            with pytest.raises(TooManyLogins):
                await slow.judged(same, wrong)
        assert await slow.judged("2001:db8:0:1::1", right)
        assert await slow.judged("10.0.0.2", right)
        assert max(clock.slept) == DELAY_MS_MAX
        clock.let_go.set()
    assert await slow.judged("2001:db8::1", right)
    clock.now_ms += 60_001
    assert not await slow.judged("2001:db8::1", wrong)
    assert clock.slept[-1] == 100
    for n in range(ADDRESSES_MAX + 10):
        await slow.judged(str(n), right)
    assert len(slow._by_address) == ADDRESSES_MAX


async def test_INV_HPC2_who_fails_again_is_not_forgotten_for_who_failed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(password_checks, "ADDRESSES_MAX", 3)
    clock = Hurried()
    slow = SlowRefusals(clock)
    for n in range(6):
        await slow.judged("10.0.0.1", wrong)
        await slow.judged(f"h{n}", wrong)
        await slow.judged(f"i{n}", right)
    assert clock.slept[::2] == [100, 200, 400, 800, 1_600, DELAY_MS_MAX]


async def test_INV_HPC2_what_is_right_comes_in_while_its_address_is_flooded() -> None:
    clock = Hurried(holds=True)
    async with behind(doors_with(clock=clock)) as node:
        assert (await node.ask("/metrics", auth=("user", "pencil")))[0] == 200
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for n in range(PENDING_MAX):
                tasks.create_task(node.ask("/metrics", auth=("user", f"wrong{n}")))
            await clock.all_held.wait()
            assert (await node.ask("/metrics", auth=("user", "wrong")))[1][
                "code"
            ] == "too-many-logins"
            assert (await node.ask("/metrics", token="tmt_x"))[0] == 503
            assert (await node.ask("/metrics", auth=("user", "pencil")))[0] == 200
            assert (await node.ask("/metrics", token=TOKENS[Role.METRICS][0]))[0] == 200
            clock.let_go.set()


async def test_INV_HPC4_an_unknown_user_costs_what_a_wrong_password_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, int]] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, secret: bytes, salt: bytes, iterations: int) -> bytes:
        done.append((name, iterations))
        return real(name, secret, salt, iterations)

    keys = scram_keys("user", "pencil", iterations=8192, digest="sha512")
    checks = PasswordChecks(desk_of(lambda: access_of(keys)).keys_for_password, CHANCE)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    assert not await checks.proves("user", "wrong")
    assert not await checks.proves("nobody", "pencil")
    assert done == [("sha512", 8192)] * 2


async def test_INV_HPC3_a_proof_is_known_until_the_keys_change() -> None:
    works = 0

    async def offload(work: Any) -> None:
        nonlocal works
        works += 1
        work()

    access = access_of(rfc_keys())
    checks = PasswordChecks(desk_of(lambda: access).keys_for_password, CHANCE, offload)
    assert not checks.knows("user", "pencil")
    assert await checks.proves("user", "pencil")
    assert [checks.knows("user", "pencil") for _ in range(3)] == [True] * 3
    assert works == 1
    assert not await checks.proves("user", "wrong")
    assert not checks.knows("user", "wrong")
    access = access_of(scram_keys("user", "crayon", salt=b"s" * 16))
    assert not checks.knows("user", "pencil")
    assert not await checks.proves("user", "pencil")
    assert await checks.proves("user", "crayon")
    assert not any(b"crayon" in mark or b"pencil" in mark for mark in checks._proved)


async def test_INV_HPC2_keys_that_are_nobodys_let_nobody_in_whatever_fits_them() -> None:
    is_real = True
    checks = PasswordChecks(lambda _name: (rfc_keys(), is_real), CHANCE)
    assert await checks.proves("user", "pencil")
    is_real = False
    assert not checks.knows("user", "pencil"), "though it was proved while they were somebody's"
    assert not await checks.proves("user", "pencil")


async def test_INV_HPC3_a_proof_is_of_that_user_those_keys_and_that_password_alone() -> None:
    """However the three are cut: what stands one behind the other is the same."""
    told = ScramKeys("ab", "SCRAM-SHA-256", b"s", 1, b"cd", b"")
    other = ScramKeys("a", "SCRAM-SHA-256", b"s", 1, b"bcd", b"")
    checks = PasswordChecks(lambda name: (told if name == "ab" else other, True), CHANCE)
    marks = {
        checks._mark(told, b"ef"), checks._mark(other, b"ef"),
        checks._mark(ScramKeys("ab", "SCRAM-SHA-256", b"s", 1, b"cde", b""), b"f"),
    }  # fmt: skip
    assert len(marks) == 3


async def test_INV_HPC3_so_many_proofs_are_remembered_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(password_checks, "PROVED_MAX", 1)
    keys = [scram_keys(name, "pencil", salt=b"s" * 16) for name in ("a", "b")]
    checks = PasswordChecks(desk_of(lambda: access_of(*keys)).keys_for_password, CHANCE)
    for name in ("a", "b"):
        assert await checks.proves(name, "pencil")
    assert [checks.knows(name, "pencil") for name in ("a", "b")] == [False, True]


@pytest.mark.parametrize(("size_bytes", "is_let_in"), [(1_024, True), (1_025, False)])
async def test_a_password_that_is_longer_than_any_may_be_lets_nobody_in(
    size_bytes: int, is_let_in: bool
) -> None:
    """Keys come computed (KIP-554), so nobody knows of how long a password: SASL refuses what is over 1,024 bytes, and so does HTTP."""
    password = "é" * (size_bytes // 2) + "x" * (size_bytes % 2)
    keys = scram_keys("user", password, salt=b"s" * 16)
    checks = PasswordChecks(desk_of(lambda: access_of(keys)).keys_for_password, CHANCE)
    assert await checks.proves("user", password) is is_let_in
    assert checks.knows("user", password) is is_let_in


async def test_INV_NHD1_a_file_of_tokens_closes_the_door_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(file_of([TOKENS[Role.METRICS][1]]))
    config = config_of(tmp_path / "data", free_ports(3), http_tokens_file=str(path))
    doors = doors_of(config, PORTS.secured(config), Access)
    doors.clock = Hurried()
    registry = CollectorRegistry()
    registry.register(DoorCollector(config, doors))
    async with behind(doors) as node:
        assert (await node.ask("/metrics"))[0] == 401
        assert (await node.ask("/metrics", token=TOKENS[Role.METRICS][0]))[0] == 200
        path.with_suffix(".new").write_bytes(file_of([TOKENS[Role.READER][1]]))
        path.with_suffix(".new").replace(path)
        assert (await node.ask("/metrics", token=TOKENS[Role.METRICS][0]))[0] == 401
        assert (await node.ask("/v1/verdict?topic=t", token=TOKENS[Role.READER][0]))[0] == 200
    assert registry.get_sample_value("tidemark_http_refused_total", {"reason": "unknown"}) == 2


async def test_INV_NHD1_whatever_identifies_callers_of_kafka_closes_this_door_by_acls_and_certificates(
    tmp_path: Path,
) -> None:
    files = put(tmp_path / "tls", node_certificate())
    named = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_ca": files.ca}
    config = config_of(
        tmp_path / "data", free_ports(3), **named, security_protocol="SSL", tls_client_auth="required",
        tls_principal_mapping_rules="RULE:^CN=([a-z]+)$/$1/", super_users="User:alice",
    )  # fmt: skip
    doors = doors_of(config, PORTS.secured(config), Access)
    assert doors.is_closed
    assert doors.passwords is not None
    assert doors.principal_of is not None
    said = [
        doors.principal_of(user_certificate(name).public_bytes(Encoding.DER))
        for name in ("alice", "b0b")
    ]
    assert said == ["User:alice", "User:ANONYMOUS"], "whom no rule names is nobody"
    asked = (Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert doors.authorizer.allows(Identity("User:alice"), *asked)
    assert not doors.authorizer.allows(Identity("User:bob"), *asked)
    plain = config_of(tmp_path / "data", free_ports(3))
    assert not doors_of(plain, PORTS.secured(plain), Access).is_closed
