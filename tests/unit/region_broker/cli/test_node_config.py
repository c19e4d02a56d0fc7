"""`tidemark node config` against a Kafka port: what it shows, what it changes, and how it says no."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from region_broker.cli.main import main
from region_broker.handlers.dispatch.nodes import KnownNode, NodeFacts
from region_broker.security.access import Access
from region_broker.security.authorizer import AclAuthorizer
from tests.fixtures.kafka_port import WireFixture, node_file, wire_fixture

KEY = "metrics_names_max"


async def command(fixture: WireFixture, *words: str, at: str = "") -> Result:
    address = at or f"127.0.0.1:{fixture.server.port}"
    arguments = ["node", "config", *words, "--bootstrap", address]
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def rows(fixture: WireFixture, *words: str) -> Any:
    result = await command(fixture, *words, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


async def test_every_key_is_shown_with_where_its_value_comes_from(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path, file=node_file(**{KEY: 7})) as fixture:
        await rows(fixture, "log_level=error")
        await rows(fixture, "group_count_max=9", "--all-nodes")
        shown = {row["key"]: row for row in await rows(fixture)}
        assert (shown["data_dir"]["value"], shown["data_dir"]["may change"]) == ("/srv/eu", False)
        told = {key: (row["node"], row["value"], row["from"]) for key, row in shown.items()}
        assert told[KEY] == (1, "7", "file")
        assert told["log_level"] == (1, "error", "node")
        assert told["group_count_max"] == (1, "9", "all nodes")
        assert told["tidemark_interval_ms"] == (1, "20", "default")
        assert [row["key"] for row in await rows(fixture, "--all-nodes")] == ["group_count_max"]


async def test_a_change_shows_before_and_after_and_a_dry_run_changes_nothing(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path, file=node_file(**{KEY: 7})) as fixture:
        for words, before, after in (
            ([f"{KEY}=8"], "7 (file)", "8 (node)"),
            ([f"{KEY}=9", "--all-nodes"], "8 (node)", "8 (node)"),
            (["--delete", KEY], "8 (node)", "9 (all nodes)"),
            (["--delete", KEY, "--all-nodes"], "9 (all nodes)", "7 (file)"),
        ):
            wanted = [{"key": KEY, "before": before, "after": after}]
            image = fixture.store.image
            assert await rows(fixture, *words, "--dry-run") == wanted
            assert fixture.store.image is image
            assert await rows(fixture, *words) == wanted
        assert fixture.store.image.node_configs == {}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["data_dir=/x"], 2, "edit its configuration file"),
        ([f"{KEY}=many"], 2, "is no whole number"),
        ([f"{KEY}=-1"], 2, "is not in 0..100000"),
        (["metrics_name_max=1"], 2, f"did you mean {KEY}?"),
        (["nonsense"], 2, "is not KEY=VALUE"),
        ([f"{KEY}=1", f"{KEY}=2"], 2, "named twice"),
        ([f"{KEY}=1", "--delete", KEY], 2, "named twice"),
        (["--delete", KEY, "--delete", KEY], 2, "twice"),
        (["--node", "7"], 3, "node 7 does not answer, only 1"),
    ],
)
async def test_what_cannot_be_done_is_said(
    tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        result = await command(fixture, *words)
        assert (result.exit_code, text in result.output) == (code, True), result.output
        assert fixture.store.image.node_configs == {}


async def test_of_several_nodes_one_is_named_and_what_is_dead_is_skipped(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path / "a") as one, wire_fixture(tmp_path / "b") as two:
        two.region.node_id = 2
        both = f"127.0.0.1:1,127.0.0.1:{one.server.port},127.0.0.1:{two.server.port}"
        refused = await command(one, f"{KEY}=5", at=both)
        assert (refused.exit_code, "--node" in refused.output) == (2, True)
        assert (await command(one, f"{KEY}=5", "--node", "1", at=both)).exit_code == 0
        assert (one.store.image.node_configs, two.store.image.node_configs) == ({1: {KEY: "5"}}, {})
        for words in ([f"{KEY}=6", "--all-nodes"], ["--delete", KEY, "--all-nodes"]):
            refused = await command(one, *words, at=both)  # each is a region of its own
            assert (refused.exit_code, "of which one's region" in refused.output) == (2, True)
        shown = await command(one, "-o", "json", at=both)
        assert {row["node"] for row in json.loads(shown.output)} == {1, 2}
        dead = await command(one, at="127.0.0.1:1,nowhere")
        assert (dead.exit_code, "no node answers" in dead.output) == (1, True)


async def test_all_nodes_of_the_one_region_that_answers_need_no_number(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path / "a") as one, wire_fixture(tmp_path / "b") as two:
        two.region.node_id = 2
        nodes = (KnownNode(1, "127.0.0.1", 1), KnownNode(2, "127.0.0.1", 2))
        for each in (one, two):
            facts = NodeFacts(nodes, nodes[0], False, None, (1, 2), (1, 2))
            each.services.region_nodes = SimpleNamespace(facts=facts)
        both = f"127.0.0.1:{one.server.port},127.0.0.1:{two.server.port}"
        done = await command(one, f"{KEY}=5", "--all-nodes", at=both)
        assert (done.exit_code, "node 1 counts on" in done.output) == (0, True), done.output
        assert [row["value"] for row in await rows(one, "--all-nodes")] == ["5"]


async def test_a_node_that_another_one_leads_is_met_by_its_own_number(tmp_path: Path) -> None:
    """DescribeCluster names who leads, not who answers."""
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.node_id = 2
        nodes = (KnownNode(1, "127.0.0.1", 1), KnownNode(2, "127.0.0.1", 2))
        facts = NodeFacts(nodes, nodes[0], False, None, (1, 2), (1, 2))
        seen = SimpleNamespace(facts=facts)
        fixture.services.region_nodes = seen
        assert {row["node"] for row in await rows(fixture, "--node", "2")} == {2}
        refused = await command(fixture, "--node", "1")
        assert (refused.exit_code, "only 2" in refused.output) == (3, True), refused.output
        seen.facts = replace(facts, registered=nodes[:1] * 2)
        unheard = await command(fixture)
        assert (unheard.exit_code, "is none of the nodes" in unheard.output) == (1, True)


async def test_who_may_not_is_told_so_by_the_exit_code_too(tmp_path: Path) -> None:
    """docs/reference/cli.md: 4 is not allowed."""
    async with wire_fixture(tmp_path) as fixture:
        fixture.services.authorizer = AclAuthorizer(Access, frozenset({"User:admin"}))
        for words in ((), (f"{KEY}=5", "--node", "1")):
            result = await command(fixture, *words)
            assert (result.exit_code, "may not" in result.output) == (4, True), result.output
        assert fixture.store.image.node_configs == {}


async def test_a_node_that_refuses_to_say_which_it_is_is_not_called_dead(tmp_path: Path) -> None:
    """Of several nodes one is known by who tells its configs, which asks for a right."""
    async with wire_fixture(tmp_path) as fixture:
        nodes = (KnownNode(1, "127.0.0.1", 1), KnownNode(2, "127.0.0.1", 2))
        facts = NodeFacts(nodes, nodes[0], False, None, (1, 2), (1, 2))
        fixture.services.region_nodes = SimpleNamespace(facts=facts)
        fixture.services.authorizer = AclAuthorizer(Access, frozenset({"User:admin"}))
        for words in ((), ("--node", "2")):
            result = await command(fixture, *words)
            assert (result.exit_code, "may not" in result.output) == (4, True), result.output
