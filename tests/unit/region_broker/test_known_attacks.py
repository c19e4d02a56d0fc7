"""Classes of faults that brokers and proxies have had, as far as no other test is about them (docs/reference/security.md has the table)."""

import asyncio
import gzip
import hmac
import json
import logging
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.compression_utils import BrotliDecompressor, ZLibDecompressor, ZSTDDecompressor

from region_broker.cli import broker
from region_broker.handlers.apis import all_apis
from region_broker.http_api.app import DEFAULT_LIMITS, HttpServer, bounded
from region_broker.http_api.routes_cluster import add_cluster_routes
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from region_broker.security.access import DelegationToken
from region_broker.security.sasl import scram, scram_keys, tokens
from region_broker.security.sasl.login import BEFORE_LOGIN
from region_broker.security.sasl.tokens import TokenSecret
from region_broker.wire.closing_lines import LINES_MAX
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until
from tests.unit.region_broker.handlers.test_logins import log_in, port, shake
from tests.unit.region_broker.http_api.test_cluster_http import Told

BETWEEN_BROKERS = {
    "LeaderAndIsr": 4, "StopReplica": 5, "UpdateMetadata": 6, "ControlledShutdown": 7, "Vote": 52, "BeginQuorumEpoch": 53,
    "EndQuorumEpoch": 54, "AlterPartition": 56, "Envelope": 58, "FetchSnapshot": 59, "BrokerRegistration": 62,
    "BrokerHeartbeat": 63, "AllocateProducerIds": 67, "ControllerRegistration": 70, "AssignReplicasToDirs": 73,
    "UpdateRaftVoter": 82,
}  # fmt: skip
LOOKUPS = "${jndi:ldap://127.0.0.1:1/x} %s %(name)s {0.__class__} ${file:/etc/passwd}"


async def test_log_lookups_what_a_client_says_is_text_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """CVE class: lookups and injection in logs (Log4Shell, CVE-2021-44228; forged lines)."""
    forged = f'{LOOKUPS}\n{{"level":"info","event":"forged"}}\r\x1b[2J\u2028'
    formatter = broker.json_lines()
    with caplog.at_level(logging.DEBUG):
        async with port(tmp_path) as fixture:
            client = await fixture.connect()
            await shake(client, forged[:120])
            await client.closed()
            known = await fixture.connect()
            await log_in(known)
            known.writer.write(_named(3, forged))
            await known.closed()
    lines = [formatter.format(each) for each in caplog.records]
    told = [json.loads(line) for line in lines if "jndi" in line]
    assert told, "somebody has told of it"
    assert not [line for line in lines if "\n" in line or "\r" in line or "\x1b" in line]
    assert all("${jndi:ldap://127.0.0.1:1/x}" in str(each) for each in told), "as it came"
    assert "forged" not in {each["event"] for each in told}


def _named(api_key: int, client_id: str) -> bytes:
    """Return a request of an API version that is not there, of a client that calls itself so."""
    name = client_id.encode()
    frame = struct.pack(">hhih", api_key, 99, 1, len(name)) + name
    return struct.pack(">i", len(frame)) + frame


async def test_no_api_between_brokers_is_there_for_clients(tmp_path: Path) -> None:
    """CVE class: an API of replicas or of the quorum that nobody authenticates (FetchSnapshot, Envelope: a forged principal)."""
    assert not set(BETWEEN_BROKERS.values()) & set(all_apis().by_key)
    async with wire_fixture(tmp_path) as fixture:
        for key in BETWEEN_BROKERS.values():
            client = await fixture.connect()
            client.writer.write(_named(key, "broker-1"))
            assert await asyncio.wait_for(client.closed(), 10)


async def test_before_a_login_every_number_of_an_api_is_closed_alike(tmp_path: Path) -> None:
    """CVE class: requests before authentication, by an API or a version that the check forgets."""

    async def is_closed(key: int, version: int) -> bool:
        client = await fixture.connect()
        frame = struct.pack(">hhih", key, version, 1, -1)
        client.writer.write(struct.pack(">i", len(frame)) + frame)
        ended = await asyncio.wait_for(client.closed(), 10)
        client.writer.close()
        return ended

    async with port(tmp_path) as fixture:
        asked = [
            (key, version)
            for key in {*range(100), -1, 999, 32_767} - BEFORE_LOGIN
            for version in (0, 99)
        ]
        for each in asked:
            assert await is_closed(*each), each
        await until(lambda: fixture.server.connection_count == 0, "nothing is left of them")


def names_under(folder: Path) -> list[str]:
    return [str(each.relative_to(folder)) for each in folder.rglob("*")]


@pytest.mark.parametrize(
    "name", ["..", ".", "../x", "..\\x", "/etc/passwd", "a/b", "%2e%2e%2fx", "a\0b", "~", "..\u2215x"]
)  # fmt: skip
async def test_no_name_leads_out_of_the_data_folder(tmp_path: Path, name: str) -> None:
    """CVE class: path traversal in names. Folders of partitions are called by ids alone."""
    folder = tmp_path / "inner"
    folder.mkdir()
    async with wire_fixture(folder) as fixture:
        client = await fixture.connect()
        asked = {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        answer = await client.call(19, 5, {"topics": [asked], "timeout": 1_000, "validate_only": False})  # fmt: skip
        assert [row.error_code.value for row in answer.topics] == [17], "INVALID_TOPIC_EXCEPTION"
        assert not fixture.services.metadata.image.topics
        await fixture.topic("fine")
    found = names_under(tmp_path)
    assert [each for each in found if "/" not in each] == ["inner"]
    assert not [each for each in found if "fine" in each], "nor by names that are"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required"),
        ("sasl.client.callback.handler.class", "org.example.Evil"),
        ("config.providers", "file"),
        ("ssl.keystore.location", "/etc/shadow"),
        ("retention.ms", "${file:/etc/passwd:root}"),
        ("tidemark.encryption", "${env:SECRET}"),
    ],
)
async def test_no_class_and_no_provider_comes_from_a_config(
    tmp_path: Path, key: str, value: str
) -> None:
    """CVE class: classes and files named by configs that clients set (CVE-2023-25194, CVE-2024-31141, CVE-2025-27818)."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("orders")
        client = await fixture.connect()
        for kind, name in ((2, "orders"), (4, "1")):
            changed = {"name": key, "config_operation": 0, "value": value}
            resource = {"resource_type": kind, "resource_name": name, "configs": [changed]}
            answer = await client.call(44, 1, {"resources": [resource], "validate_only": False})
            [row] = answer.responses
            assert row.error_code.value != 0
            assert "root:" not in (row.error_message or "")
        assert not fixture.services.metadata.image.topics["orders"].configs


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2021-38153: `Arrays.equals` on a password."""
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def noted(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    for module in (scram, scram_keys, tokens):
        monkeypatch.setattr(module.hmac, "compare_digest", noted)
    keys = scram_keys.keys_of("alice", "SCRAM-SHA-256", b"secret", b"salt" * 8, 4096)
    assert scram_keys.fits(keys, b"secret")
    assert not scram_keys.fits(keys, b"wrong!")
    assert len(compared) == 2
    secret, token = TokenSecret(b"s" * 32), DelegationToken("id", "User:a", "User:a", (), 0, 0, 0)
    assert not secret.is_of(token.token_id, b"x")
    assert len(compared) == 3


SMUGGLED = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 40\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length with a sign": b"Content-Length: +0\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n",
    "a folded header": b"X: y\r\n Content-Length: 3\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED.keys())
async def test_no_request_is_smuggled_behind_another(
    headers: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """CVE class: request smuggling (a length beside chunks, two lengths): what two servers could read in two ways is refused."""
    reached: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="fine")

    app = bounded(DEFAULT_LIMITS)
    app.router.add_route("*", "/{path}", answer)
    server = HttpServer(app)
    _, bound = await server.start("127.0.0.1", 0)
    for _ in range(5):
        said = await _said(bound, b"POST /front HTTP/1.1\r\nHost: x\r\n" + headers)
        assert said.partition(b" ")[2].startswith(b"400 ")
    assert not reached
    [line] = caplog.records
    assert "127.0.0.1 cannot be read (" in line.getMessage(), "one line, and nothing of what came"
    await server.stop()


@pytest.mark.parametrize(
    "forged",
    [b"%0d%0aX-Forged:%20yes", b"%250d%250aX-Forged:%20yes", b"%E5%98%8A%E5%98%8DX-Forged:%20yes", b"\rX-Forged:yes", b"%0aX-Forged:yes"],
)  # fmt: skip
async def test_no_header_of_an_answer_is_written_by_who_asks(forged: bytes) -> None:
    """CVE class: injection into headers (CWE-113): a redirection names another node, and behind it what was asked, in which a line may end."""
    api = Told({})
    api.refuses = ClusterOrderRefused("other-node", "node 2 does", url="http://n2:9093")
    app = bounded(DEFAULT_LIMITS)
    add_cluster_routes(app, api)
    server = HttpServer(app)
    _, bound = await server.start("127.0.0.1", 0)
    asked = b"POST /v1/cluster/elect?x=" + forged + b" HTTP/1.1\r\nHost: x\r\nX-Asked: a" + forged
    asked += (
        b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    said = await _said(bound, asked)
    await server.stop()
    head = said.partition(b"\r\n\r\n")[0].decode("ascii")
    lines = re.split(r"[\r\n]+", head)[1:]
    told = dict(line.split(": ", 1) for line in lines)
    assert {"content-type", "content-length", "date", "server"} <= {*map(str.lower, told)}
    assert not [name for name in told if "forged" in name.lower() or "asked" in name.lower()]
    if "%" in forged.decode():
        assert told["Location"].startswith("http://n2:9093/v1/cluster/elect?x=")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br", "GZip, identity"])
async def test_INV_HBE1_no_body_is_unpacked(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE class: decompression bombs (CWE-409): 64 kB of zstd are 2 GiB, and whoever the door refuses has the rest of his body read all the same."""
    unpacked: list[object] = []
    for packed in (ZLibDecompressor, ZSTDDecompressor, BrotliDecompressor):
        monkeypatch.setattr(packed, "decompress_sync", lambda *read, **_: unpacked.append(read))
    server = HttpServer(bounded(DEFAULT_LIMITS))
    _, bound = await server.start("127.0.0.1", 0)
    body = gzip.compress(bytes(100_000))
    head = f"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
    said = await _said(bound, head.encode() + body)
    await server.stop()
    assert said.startswith(b"HTTP/1.1 415 ")
    assert not unpacked


async def _said(bound: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", bound)
    writer.write(request)
    said = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return said


async def test_INV_HPL1_a_token_in_a_request_that_cannot_be_read_is_in_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = HttpServer(bounded(DEFAULT_LIMITS))
    _, bound = await server.start("127.0.0.1", 0)
    for broken in (b"Authorization : Bearer tmt_s3cret", b"Authorization: Bearer tmt_s3cret\x01"):
        said = await _said(bound, b"GET /readyz HTTP/1.1\r\nHost: x\r\n" + broken + b"\r\n\r\n")
        assert b" 400 " in said
    await server.stop()
    assert caplog.records
    formatter = broker.json_lines()
    assert not [each for each in caplog.records if "s3cret" in formatter.format(each)]


async def test_INV_WS10_a_flood_of_what_is_no_kafka_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with wire_fixture(tmp_path, clock=clock) as fixture:
        for flood in (3 * LINES_MAX, 1):
            for _ in range(flood):
                client = await fixture.connect()
                client.writer.write(b"\xff" * 64)
                await client.closed()
            clock.pass_ms(1_000)
    told = [each for each in caplog.messages if each.startswith("closing the connection of")]
    assert len(told) == LINES_MAX + 1
    assert f"{2 * LINES_MAX} more connections were closed in that second" in caplog.messages
