"""Users over Kafka's APIs (KIP-554), and `tidemark user` against them (INV-USR1)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kio.schema.errors import ErrorCode

from region_broker.cli.main import main
from region_broker.security.access import ScramKeys
from region_broker.security.sasl.scram_keys import keys_in, keys_of, salted
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture

SALT = b"salty" * 4
SALTED = salted("SCRAM-SHA-256", b"pencil", SALT, 4096)


def upsertion(name: str = "alice", **changed: Any) -> dict[str, Any]:
    row = {"name": name, "mechanism": 1, "iterations": 4096, "salt": SALT, "salted_password": SALTED}  # fmt: skip
    return row | changed


async def alter(client: RawClient, *put: Any, gone: Any = ()) -> dict[str, tuple[ErrorCode, Any]]:
    answer = await client.call(51, 0, {"deletions": list(gone), "upsertions": list(put)})
    return {row.user: (row.error_code, row.error_message) for row in answer.results}


def keys_of_alice(fixture: WireFixture, mechanism: str) -> ScramKeys:
    [found] = [
        row for row in fixture.store.image.access.keys_of("alice") if row.mechanism == mechanism
    ]
    return found


async def described(client: RawClient, *names: str) -> dict[str, Any]:
    users = [{"name": name} for name in names] or None
    answer = await client.call(50, 0, {"users": users})
    return {
        row.user: row.error_code
        if row.error_code is not ErrorCode.none
        else [(info.mechanism, info.iterations) for info in row.credential_infos]
        for row in answer.results
    }


async def test_users_come_are_shown_and_go(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        assert await described(client) == {}
        assert await alter(client, upsertion(), upsertion("bob")) == {
            "alice": (ErrorCode.none, None), "bob": (ErrorCode.none, None),
        }  # fmt: skip
        kept = keys_of_alice(fixture, "SCRAM-SHA-256")
        assert kept == keys_of("alice", "SCRAM-SHA-256", b"pencil", SALT, 4096)
        assert await described(client) == {"alice": [(1, 4096)], "bob": [(1, 4096)]}
        assert await described(client, "bob", "eve", "alice", "alice") == {
            "bob": [(1, 4096)], "eve": ErrorCode.resource_not_found, "alice": ErrorCode.duplicate_resource,
        }  # fmt: skip
        gone = [{"name": "alice", "mechanism": 1}]
        assert await alter(client, gone=gone) == {"alice": (ErrorCode.none, None)}
        assert await described(client) == {"bob": [(1, 4096)]}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"iterations": 4095}, ErrorCode.unacceptable_credential),
        ({"iterations": 16385}, ErrorCode.unacceptable_credential),
        ({"mechanism": 7}, ErrorCode.unsupported_sasl_mechanism),
        ({"salted_password": b"short"}, ErrorCode.unacceptable_credential),
        ({"salt": b""}, ErrorCode.unacceptable_credential),
        ({"name": ""}, ErrorCode.unacceptable_credential),
        ({"name": "\u2168"}, ErrorCode.unacceptable_credential),
    ],
)
async def test_a_user_that_is_not_right_is_refused_and_others_are_not(
    tmp_path: Path, changed: dict[str, Any], error: ErrorCode
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        row = upsertion(**changed)
        answers = await alter(client, row, upsertion("bob"))
        assert answers[row["name"]][0] is error
        assert answers["bob"][0] is ErrorCode.none
        assert list(await described(client)) == ["bob"]


async def test_what_is_asked_twice_or_is_not_there_changes_nothing(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        gone = [{"name": "alice", "mechanism": 1}]
        assert (await alter(client, gone=gone))["alice"][0] is ErrorCode.resource_not_found
        both = await alter(client, upsertion(), gone=gone)
        assert both["alice"][0] is ErrorCode.duplicate_resource
        assert await described(client) == {}


async def test_a_mirror_has_users_changed_at_the_primary(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.drained = True
        client = await fixture.connect()
        assert (await alter(client, upsertion()))["alice"][0] is ErrorCode.not_controller


async def run(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Run a command beside the node that it asks."""
    done = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=environment)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


async def test_the_commands_of_users(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path / "node") as fixture:
        told = {"TIDEMARK_BOOTSTRAP": f"127.0.0.1:{fixture.server.port}"}
        secret = tmp_path / "password"
        secret.write_text("pencil\n")
        from_file = ("--new-password-file", str(secret))
        await run(told, "user", "create", "alice", *from_file, "--dry-run")
        assert json.loads(await run(told, "user", "list", "-o", "json")) == []
        await run(told, "user", "create", "alice", *from_file)
        rows = json.loads(await run(told, "user", "list", "-o", "json"))
        assert [(row["user"], row["mechanism"], row["iterations"]) for row in rows] == [
            ("alice", "SCRAM-SHA-256", 4096), ("alice", "SCRAM-SHA-512", 4096),
        ]  # fmt: skip
        kept = keys_of_alice(fixture, "SCRAM-SHA-512")
        assert kept == keys_of("alice", kept.mechanism, b"pencil", kept.salt, 4096)
        assert "already" in await run(told, "user", "create", "alice", *from_file, code=1)
        await run({**told, "TIDEMARK_NEW_PASSWORD": "feather"}, "user", "set-password", "alice")
        kept = keys_of_alice(fixture, "SCRAM-SHA-256")
        assert kept == keys_of("alice", kept.mechanism, b"feather", kept.salt, 4096)
        await run(told, "user", "delete", "alice")
        assert "no user alice" in await run(told, "user", "delete", "alice", code=3)
        assert "no user alice" in await run(told, "user", "set-password", "alice", *from_file, code=3)  # fmt: skip


def test_keys_are_printed_for_a_file_of_users() -> None:
    done = CliRunner().invoke(main, ["user", "keys", "root"], env={"TIDEMARK_NEW_PASSWORD": "pw"})
    made = [keys_in(line) for line in done.output.splitlines()]
    assert [keys.mechanism for keys in made] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert made[0] == keys_of("root", "SCRAM-SHA-256", b"pw", made[0].salt, 4096)


@pytest.mark.parametrize("password", ["", "Ⅸ", "x" * 2000])
def test_a_password_that_is_none_is_refused(tmp_path: Path, password: str) -> None:
    secret = tmp_path / "password"
    secret.write_text(password)
    done = CliRunner().invoke(main, ["user", "keys", "root", "--new-password-file", str(secret)])
    assert done.exit_code == 2
    assert password == "" or password not in done.output
