"""What `tidemark broker --check` finds on this machine, and that a start refuses the same (INV-STC1, INV-STC2)."""

import asyncio
import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from region_broker.cli.broker import broker
from region_broker.cli.init import init
from region_broker.config.exposure import (
    asks_who_calls,
    exposure_problems,
    open_ports,
    warning_of,
)
from region_broker.config.node_config import NodeConfig
from region_broker.config.rules import Problem
from region_broker.node import Node, NodeRefused, Ports, start_checks
from region_broker.node.birth import give_birth
from region_broker.node.secret_files import KEYS, open_secrets
from region_broker.node.start_checks import look_around
from region_broker.node.storage import Storage
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.folder.identity_file import read_identity
from region_broker.security.sealing.key_ring import Ring, RingError, with_version, write_ring
from region_broker.security.sealing.key_sources import KeySource, KeySources
from tests.fixtures.failover_regions import free_ports

PORTS = Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork())


@pytest.fixture
def free() -> list[int]:
    """Four ports that nobody has, nor is given."""
    return free_ports(4)


def config_of(folder: Path, ports: list[int], **changed: Any) -> NodeConfig:
    ordinal, node_id = changed.pop("ordinal", 0), changed.pop("node_id", 1)
    region = {"name": changed.get("region", "eu"), "ordinal": ordinal, "node_id": node_id,
              "kafka": f"127.0.0.1:{ports[0]}", "peer": f"127.0.0.1:{ports[1]}",
              "http": f"127.0.0.1:{ports[2]}"}  # fmt: skip
    raw: dict[str, Any] = {"region": "eu", "cluster_id": "c1", "data_dir": str(folder), "initial_primary_region":
                           region["name"], "regions": [region], **changed}  # fmt: skip
    return NodeConfig.build(raw, "node.toml")


def names(folder: Path) -> list[str]:
    return sorted(f"{path}:{path.stat().st_mtime_ns}" for path in folder.rglob("*"))


async def found(config: NodeConfig) -> list[Problem]:
    return (await look_around(config, PORTS)).problems


async def start_refuses(config: NodeConfig) -> bool:
    """Go through what a start does up to its ports, and take it back."""
    try:
        node = await Node.open(config, PORTS)
    except (NodeRefused, OSError):
        return True
    try:
        await node._bind()
    except NodeRefused:
        return True
    finally:
        node.kafka.close()
        node.peers.close()
        await node.http.stop()
        await node.storage.close()
    return False


async def test_INV_STC1_a_look_writes_and_keeps_nothing(tmp_path: Path, free: list[int]) -> None:
    config = config_of(tmp_path / "a" / "b", free)
    assert await found(config) == []
    assert (await look_around(config, PORTS)).unborn
    assert names(tmp_path) == []
    assert not await start_refuses(config)
    before = names(tmp_path)
    assert await found(config) == []
    assert names(tmp_path) == before
    assert (await look_around(config, PORTS)).unborn, "T32: a start gives no history"
    assert not await start_refuses(config)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cluster_id": "c2"}, ["cluster c1"]),
        ({"shard_count": 8}, ["shard_count = 8 contradicts"]),
        ({"ordinal": 3}, ["regions[0].ordinal = 3 contradicts"]),
        ({"ordinal": 3, "shard_count": 8}, ["regions[0].ordinal = 3", "shard_count = 8"]),
        ({"region": "us"}, ["holds the data of region eu"]),
        ({"node_id": 7}, ["belongs to node 1 of region eu"]),
    ],
)
async def test_INV_STC2_a_folder_that_contradicts_is_found_as_by_a_start(
    tmp_path: Path, free: list[int], changed: dict[str, Any], said: list[str]
) -> None:
    storage = await Storage.open(config_of(tmp_path, free), PORTS)
    await storage.close()
    config = config_of(tmp_path, free, **changed)
    problems = [str(problem) for problem in await found(config)]
    assert len(problems) == len(said)
    assert all(words in problem for words, problem in zip(said, problems, strict=True)), problems
    assert await start_refuses(config)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example"])
async def test_INV_EXP1_a_node_that_others_reach_starts_only_where_its_file_says_so(
    tmp_path: Path, free: list[int], host: str
) -> None:
    config = config_of(tmp_path / "data", free, listen_host=host)
    problems = await found(config)
    assert [problem.key.rpartition(":")[0] for problem in problems] == [
        f"{key} = '{host}" for key in ("kafka", "peer", "http")
    ]
    lacks = [
        "TLS and callers that must say who they are",
        "TLS",
        "TLS and callers that must say who they are",
    ]
    assert [problem.wrong.partition("lacks ")[2] for problem in problems] == lacks
    assert all("insecure = true" in problem.right for problem in problems)
    assert names(tmp_path) == []
    path = tmp_path / "node.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(config)))
    ended = await asyncio.to_thread(CliRunner().invoke, broker, ["--config", str(path), "--check"])
    assert ended.exit_code == 1
    assert "would be open to others" in ended.stderr
    said = msgspec.structs.replace(config, insecure=True)
    assert warning_of(said).startswith(f"insecure = true: kafka ({host}:")
    assert exposure_problems(said) == []


@pytest.mark.parametrize("host", ["", "127.0.0.1", "127.0.0.77", "localhost", "::1"])
async def test_a_node_that_nobody_else_reaches_needs_no_word(
    tmp_path: Path, free: list[int], host: str
) -> None:
    config = config_of(tmp_path, free, listen_host=host, insecure=True)
    assert (open_ports(config), warning_of(config)) == ([], "")


@pytest.mark.parametrize(
    ("keys", "lacking", "asks"),
    [
        ({"security_protocol": "SASL_SSL"}, [], True),
        ({"security_protocol": "SSL", "tls_client_auth": "required"}, [], True),
        ({"security_protocol": "SSL", "tls_client_auth": "requested"}, ["kafka", "http"], False),
        ({"security_protocol": "SSL", "http_tokens_file": "tokens.json"}, ["kafka"], True),
        ({"security_protocol": "SASL_PLAINTEXT"}, ["kafka"], True),
        ({"security_protocol": "SASL_SSL", "peer_security_protocol": "PLAINTEXT"}, ["peer"], True),
        ({"security_protocol": "SASL_SSL", "http_security_protocol": "PLAINTEXT"}, ["http"], True),
        ({"security_protocol": "SASL_SSL", "listeners": [
            {"name": "IN", "bind": "0.0.0.0:9", "advertised": "h:9", "security_protocol": "PLAINTEXT"},
            {"name": "LOCAL", "bind": "127.0.0.1:8", "advertised": "h:8", "security_protocol": "PLAINTEXT"}]},
         ["listeners.IN"], True),
        ({"security_protocol": "SSL", "listeners": [
            {"name": "IN", "bind": "0.0.0.0:9", "advertised": "h:9", "security_protocol": "SASL_SSL"}]}, ["kafka"], True),
    ],
)  # fmt: skip
async def test_INV_NHD1_what_shuts_which_port(
    tmp_path: Path, free: list[int], keys: dict[str, Any], lacking: list[str], asks: bool
) -> None:
    usual: dict[str, Any] = {
        "peer_security_protocol": "SSL", "http_security_protocol": "SSL", "tls_certificate": "c.pem", "tls_key": "k.pem", "tls_ca": "ca.pem",
    }  # fmt: skip
    config = config_of(tmp_path, free, **{"listen_host": "0.0.0.0", **usual, **keys})
    assert ([port.key for port in open_ports(config)], asks_who_calls(config)) == (lacking, asks)


async def test_a_file_of_tokens_that_cannot_be_used_refuses_a_start(
    tmp_path: Path, free: list[int]
) -> None:
    config = config_of(tmp_path / "data", free, http_tokens_file=str(tmp_path / "none.json"))
    (problem,) = await found(config)
    assert problem.wrong == "cannot be used (No such file or directory)"
    (tmp_path / "none.json").write_text("{}")
    (problem,) = await found(config)
    assert "token create" in problem.wrong


async def test_INV_STC2_a_file_of_keys_that_cannot_be_used_is_found_as_by_a_start(
    tmp_path: Path, free: list[int]
) -> None:
    path = tmp_path / "keys.toml"
    config = config_of(tmp_path / "data", free, encryption_keys_file=str(path))
    (problem,) = await found(config)
    assert "No such file" in problem.wrong
    path.write_text("orders = 1")
    (problem,) = await found(config)
    assert "is not right" in problem.wrong
    with pytest.raises(RingError):
        await start_refuses(config)


async def test_a_key_whose_source_gives_it_not_is_remarked_and_refuses_no_start(
    tmp_path: Path, free: list[int]
) -> None:
    """INV-SEA2. After a rewrap this is how one hears of it before the next start: until then the node has its versions in memory."""
    path, sources = tmp_path / "keys.toml", {}
    ring: Ring = {}
    for name in ("orders", "invoices"):
        sources[name] = tmp_path / f"{name}.key"
        sources[name].write_text(base64.b64encode(os.urandom(32)).decode())
        sources[name].chmod(0o600)
        ring = with_version(KeySources(RealDisk()), ring, name, KeySource(file=str(sources[name])), "2026-11-28T00:00:00Z")  # fmt: skip
    write_ring(RealDisk().write_file_atomic, path, ring)
    path.chmod(0o600)
    config = config_of(tmp_path / "data", free, encryption_keys_file=str(path))
    assert (await look_around(config, PORTS)).remarks == []
    sources["invoices"].chmod(0o644)
    (remark,) = (await look_around(config, PORTS)).remarks  # INV-NSF1
    assert remark == (
        f"the source of the key 'invoices', {sources['invoices']} (mode 0644): everyone on this machine can read it: chmod 600 {sources['invoices']}"
    )
    sources["invoices"].chmod(0o600)
    sources["orders"].unlink()
    findings = await look_around(config, PORTS)
    (remark,) = findings.remarks
    assert findings.problems == []
    for part in (
        "key 'orders'",
        f"{sources['orders']} cannot be read",
        "the node starts",
        "--check",
    ):
        assert part in remark


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300, "/proc/nowhere"])
async def test_INV_STC2_a_folder_that_cannot_be_is_found_as_by_a_start(
    tmp_path: Path, free: list[int], place: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    config = config_of(tmp_path / place, free)
    (problem,) = await found(config)
    assert problem.key == f"data_dir = {config.data_dir!r}"
    assert problem.wrong.startswith("cannot be used (")
    assert await start_refuses(config)


async def test_INV_STC2_an_audit_trail_that_cannot_be_is_found_as_by_a_start(
    tmp_path: Path, free: list[int]
) -> None:
    kept = str(tmp_path / "kept")
    first = config_of(tmp_path / "first", free, audit="on", audit_dir=kept)
    assert await found(first) == []
    assert not await start_refuses(first)
    second = {"audit": "on", "region": "us", "ordinal": 1, "node_id": 2}
    before = names(tmp_path)
    [problem] = await found(config_of(tmp_path / "second", free, audit_dir=kept, **second))
    assert "that of node 1 of region eu" in str(problem)
    assert names(tmp_path) == before
    assert await start_refuses(config_of(tmp_path / "second", free, audit_dir=kept, **second))
    (tmp_path / "file").touch()
    of_a_file = config_of(tmp_path / "third", free, audit_dir=str(tmp_path / "file" / "x"), **second)  # fmt: skip
    [problem] = await found(of_a_file)
    assert "Not a directory" in str(problem)
    assert await start_refuses(of_a_file)


async def test_INV_STC2_ports_are_found_as_by_a_start(tmp_path: Path, free: list[int]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free[2]))
        taken.listen()
        config = config_of(tmp_path, free)
        (problem,) = await found(config)
        assert problem.key == f"http = '127.0.0.1:{free[2]}' of region eu"
        assert problem.wrong == "cannot be bound (Address already in use)"
        assert await start_refuses(config)
    # a documentation address
    elsewhere = config_of(tmp_path, free, listen_host="203.0.113.7", insecure=True)
    assert [problem.key.split()[0] for problem in await found(elsewhere)] == [
        "kafka",
        "peer",
        "http",
    ]
    assert await start_refuses(elsewhere)


async def test_a_port_that_connections_are_given_too_is_named(
    tmp_path: Path, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A node stops. 2. Somebody on its machine dials, and is given its port. 3. For a minute it does not start again."""
    config = config_of(tmp_path, free)
    assert (await look_around(config, PORTS)).remarks == []
    monkeypatch.setattr(start_checks, "is_dialled", lambda port: port == free[2])
    (remark,) = (await look_around(config, PORTS)).remarks
    assert remark.startswith(f"http = '127.0.0.1:{free[2]}': this machine gives this port to conn")
    with socket.socket() as one, socket.socket() as dialled:
        one.bind(("127.0.0.1", 0))
        one.listen()
        dialled.bind(("127.0.0.1", free[2]))
        dialled.connect(one.getsockname())
        (problem,) = await found(config)
    assert problem.wrong == "cannot be bound (Address already in use)"
    assert "ip_local_reserved_ports" in str(problem)


async def test_a_folder_in_use_is_said_to_be_and_its_ports_are_left_alone(
    tmp_path: Path, free: list[int]
) -> None:
    config = config_of(tmp_path, free)
    storage = await Storage.open(config, PORTS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free[0]))
        taken.listen()
        seen = await look_around(config, PORTS)
        (other,) = (await look_around(config_of(tmp_path, free, cluster_id="c9"), PORTS)).problems
    assert (seen.problems, seen.in_use) == ([], True)
    assert other.wrong == "is not for this configuration"
    await storage.close()
    assert not (await look_around(config, PORTS)).in_use


def test_INV_BI3_a_refused_birth_leaves_no_folder(tmp_path: Path, free: list[int]) -> None:
    alone = config_of(tmp_path / "data", free)
    unheard = msgspec.structs.replace(alone.own_node, peer=f"127.0.0.1:{free[3]}")
    silent = msgspec.structs.replace(alone.own, name="us", nodes=[unheard])
    config = msgspec.structs.replace(alone, regions=[alone.own, silent])
    with pytest.raises(NodeRefused, match="cannot be asked for history"):
        asyncio.run(give_birth(config, PORTS, no_history_elsewhere=False))
    elsewhere = msgspec.structs.replace(config, initial_primary_region="us")
    with pytest.raises(NodeRefused, match="born at its primary region"):
        asyncio.run(give_birth(elsewhere, PORTS, no_history_elsewhere=True))
    assert not (tmp_path / "data").exists()


def test_T32_check_of_a_folder_without_history_names_init(tmp_path: Path, free: list[int]) -> None:
    """Such a configuration is valid, and its node never acts by itself."""
    config, path = config_of(tmp_path / "data", free), tmp_path / "node.toml"
    path.write_text(
        f'region = "eu"\ncluster_id = "c1"\ndata_dir = "{config.data_dir}"\nhome_region = "eu"\n'
        f'[[regions]]\nname = "eu"\nordinal = 0\nnode_id = 1\nkafka = "{config.own_node.kafka}"\n'
        f'peer = "{config.own_node.peer}"\nhttp = "{config.own_node.http}"\n'
    )
    unborn = CliRunner().invoke(broker, ["--config", str(path), "--check"])
    assert unborn.exit_code == 0, unborn.output
    assert "has no history" in unborn.stderr
    assert "tidemark init" in unborn.stderr
    asyncio.run(give_birth(config, PORTS, no_history_elsewhere=True))
    born = CliRunner().invoke(broker, ["--config", str(path), "--check"])
    assert born.exit_code == 0, born.output
    assert born.stderr == ""


def of_several_nodes(folder: Path, ports: list[int], **changed: Any) -> dict[str, Any]:
    """Return a configuration of node 12 of region eu, which runs at these ports; its other nodes, and us, do not run."""
    nodes = [{"node_id": node_id, "kafka": f"127.0.0.{at}:{ports[0]}", "peer": f"127.0.0.{at}:{ports[1]}",
              "http": f"127.0.0.{at}:{ports[2]}"} for at, node_id in ((2, 11), (1, 12), (3, 13))]  # fmt: skip
    return {"region": "eu", "node_id": 12, "cluster_id": "c1", "data_dir": str(folder), "initial_primary_region": "eu",
            "regions": [{"name": "eu", "ordinal": 0, "nodes": nodes}], **changed}  # fmt: skip


async def test_a_folder_belongs_to_one_node_of_its_region(tmp_path: Path, free: list[int]) -> None:
    raw = of_several_nodes(tmp_path, free)
    storage = await Storage.open(NodeConfig.build(raw, "node.toml"), PORTS)
    await storage.close()
    other = NodeConfig.build({**raw, "node_id": 13}, "node.toml")
    with pytest.raises(NodeRefused, match=r"belongs to node 12 of region eu, .* says node_id = 13"):
        await Storage.open(other, PORTS)


def test_T32_of_a_region_of_several_nodes_one_is_born(tmp_path: Path, free: list[int]) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(of_several_nodes(tmp_path / "12", free)))
    born = CliRunner().invoke(init, ["--config", str(path), "--no-history-elsewhere"])
    assert born.exit_code == 0, born.output
    assert born.stdout == (
        f"cluster c1 in {tmp_path / '12'} is born: start node 12 of region eu, and the others, which join it\n"
    )
    identity = read_identity(PORTS.disk, tmp_path / "12")
    assert identity is not None
    assert identity.born is not None
    assert (identity.region, identity.node_id) == ("eu", 12)
    assert "at one node of its primary region" in CliRunner().invoke(init, ["--help"]).output


async def test_T32_no_birth_where_another_node_of_the_region_has_history(
    tmp_path: Path, free: list[int]
) -> None:
    """1. Node 12 is born, and runs. 2. Node 11 is to be born, too: were it, the region would have two histories."""
    raw = of_several_nodes(tmp_path / "12", free)
    born = NodeConfig.build(raw, "node.toml")
    unborn = NodeConfig.build({**raw, "node_id": 11, "data_dir": str(tmp_path / "11")}, "node.toml")
    with pytest.raises(
        NodeRefused, match=r"node 11 of region eu .*, node 13 of region eu .* asked"
    ):
        await give_birth(born, PORTS, no_history_elsewhere=False)
    await give_birth(born, PORTS, no_history_elsewhere=True)
    node, ready = await Node.open(born, PORTS), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.run(ready.set))
        await ready.wait()
        with pytest.raises(NodeRefused, match="node 12 of region eu has history of cluster c1"):
            await give_birth(unborn, PORTS, no_history_elsewhere=True)
        node.stop()
    assert not (tmp_path / "11").exists()


def test_INV_NSF1_each_secret_that_all_may_read_is_remarked_and_none_that_is_missing(
    tmp_path: Path, free: list[int]
) -> None:
    changed: dict[str, str] = {"tls_certificate": str(tmp_path / "own.pem")}
    for key in KEYS:
        changed[key] = str(tmp_path / key)
        (tmp_path / key).write_text("secret")
        (tmp_path / key).chmod(0o640)
    config = config_of(tmp_path / "data", free, **changed)
    assert list(open_secrets(config, RealDisk())) == []
    for key in KEYS:
        (tmp_path / key).chmod(0o644)
    said = list(open_secrets(config, RealDisk()))
    assert [text.partition(",")[0] for text in said] == list(KEYS)
    (tmp_path / KEYS[0]).unlink()
    assert len(list(open_secrets(config, RealDisk()))) == len(KEYS) - 1
