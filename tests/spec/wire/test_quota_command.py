"""`tidemark quota` against a node: what it sets, shows, checks only and removes, and its exit codes."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from region_broker.cli.main import main
from tests.fixtures.kafka_port import WireFixture, wire_fixture


async def run(fixture: WireFixture, *words: str) -> tuple[int, str]:
    bootstrap = f"127.0.0.1:{fixture.server.port}"
    asked = ["quota", *words, "--bootstrap", bootstrap]
    result = await asyncio.to_thread(CliRunner().invoke, main, asked)
    return result.exit_code, result.output


async def listed(fixture: WireFixture, *words: str) -> list[dict[str, Any]]:
    code, text = await run(fixture, "list", "-o", "json", *words)
    assert code == 0, text
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


async def test_quotas_are_set_listed_and_removed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.kafka_port = fixture.server.port
        assert await listed(fixture) == []
        both = ("producer_byte_rate=1048576", "request_percentage=12.5", "--for-user", "alice")
        code, text = await run(fixture, "set", *both, "--dry-run", "-o", "json")
        assert (code, json.loads(text)[0]) == (
            0, {"quota": "producer_byte_rate", "before": "", "after": 1048576},
        )  # fmt: skip
        assert await listed(fixture) == []
        assert (await run(fixture, "set", *both))[0] == 0
        assert (await run(fixture, "set", "producer_byte_rate=5", "--for-default-client-id"))[
            0
        ] == 0
        of_alice = [
            {"user": "alice", "client-id": "", "ip": "", "quota": "producer_byte_rate", "value": 1048576},
            {"user": "alice", "client-id": "", "ip": "", "quota": "request_percentage", "value": 12.5},
        ]  # fmt: skip
        assert await listed(fixture, "--for-user", "alice") == of_alice
        assert [row["client-id"] for row in await listed(fixture, "--for-default-client-id")] == [
            "<default>"
        ]
        assert len(await listed(fixture)) == 3
        code, text = await run(
            fixture, "remove", "producer_byte_rate", "--for-user", "alice", "-o", "json"
        )
        assert json.loads(text) == [{"quota": "producer_byte_rate", "before": 1048576, "after": ""}]
        assert (await run(fixture, "remove", "--for-default-client-id"))[0] == 0
        assert await listed(fixture) == of_alice[1:]


async def test_what_is_wrong_is_said_and_has_its_exit_code(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for words, code, text in (
            (("set", "producer_byte_rate=-5", "--for-user", "a"), 2, "Quota producer_byte_rate must be greater than 0"),
            (("set", "bytes=5", "--for-user", "a"), 2, "Invalid configuration key bytes"),
            (("set", "bytes=5", "--for-user", "a"), 2, "The keys are producer_byte_rate"),
            (("set", "producer_byte_rate=5", "--for-ip", "10.0.0.7"), 2, "of addresses connection_creation_rate"),
            (("set", "producer_byte_rate=nan", "--for-user", "a"), 2, "is no number"),
            (("set", "producer_byte_rate", "--for-user", "a"), 2, "is not KEY=VALUE"),
            (("set", "producer_byte_rate=1"), 2, "say whose quota"),
            (("set", "producer_byte_rate=1", "--for-user", "a", "--for-default-user"), 2, "two entities"),
            (("set", "connection_creation_rate=1", "--for-ip", "nowhere"), 2, "nowhere is not a valid IP"),
            (("remove", "--for-user", "nobody"), 3, "has no such quota"),
        ):  # fmt: skip
            found, told = await run(fixture, *words)
            assert found == code, told
            assert text in told
        fixture.region.drained = True
        code, told = await run(fixture, "set", "producer_byte_rate=1", "--for-user", "a")
        assert (code, "is about to take over" in told) == (1, True)
