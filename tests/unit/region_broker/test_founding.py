"""`tidemark init` at a node of another region of several nodes: its quorum begins by an operator's word, once (INV-BI4)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from geo_replicator.folder_life import Birth, FolderIdentity, Shown
from idempotency.identity import RegionEpoch
from region_broker.config.node_config import NodeConfig, RegionNode
from region_broker.config.rules import split
from region_broker.node import NodeRefused, Ports
from region_broker.node.birth import BirthOutcome, give_birth
from region_broker.node.handshake import Handshake
from region_broker.node.storage import METADATA_FILE
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.folder.identity_file import read_identity, write_identity
from region_broker.region.folder.newborn import new_identity
from region_broker.region.peers.protocol import NOT_ACTING, NOT_LEADING, Hello, PeerRefused
from region_broker.region.peers.server import PeerServer
from tests.fixtures.failover_regions import free_ports

PORTS = Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork())
BIRTH = Birth(birth_id="b" * 32, region="us", region_epoch=RegionEpoch(8), wall_ms=1)


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    """Node 12 of region eu, which has node 11, too; the cluster is born at us."""
    ports = free_ports(9)
    nodes = [
        {"node_id": 11 + at, "kafka": f"127.0.0.1:{ports[3 * at]}", "peer": f"127.0.0.1:{ports[3 * at + 1]}",
         "http": f"127.0.0.1:{ports[3 * at + 2]}"} for at in range(3)
    ]  # fmt: skip
    return {
        "region": "eu", "node_id": 12, "cluster_id": "c1", "data_dir": str(tmp_path / "12"),
        "initial_primary_region": "us",
        "regions": [{"name": "eu", "ordinal": 0, "nodes": nodes[:2]}, {"name": "us", "ordinal": 1, **nodes[2]}],
    }  # fmt: skip


def config_of(raw: dict[str, Any]) -> NodeConfig:
    return NodeConfig.build(raw, "node.toml")


def follower() -> PeerRefused:
    return PeerRefused(NOT_LEADING, "node 11 does not lead region eu: node 13 does")


def is_there(config: NodeConfig) -> bool:
    return PORTS.disk.exists(Path(config.data_dir))


def about_to_lead() -> PeerRefused:
    return PeerRefused(NOT_ACTING, "this node begins to lead its region")


def started(refused: Callable[[], PeerRefused]) -> Handshake:
    """Return what a node says that is asked for nothing: another one leads, or it is not that far."""
    handshake = Handshake()
    handshake.driver = Mock()
    handshake.refused = refused
    return handshake


def leads(identity: FolderIdentity) -> Handshake:
    """Return what the node with that folder says, which speaks for a region that has joined no history yet."""
    handshake, hello = Handshake(), Hello(
        cluster_id="c1", region="eu", node_id=11, region_epoch=RegionEpoch(0), folder=Shown.of(identity),
    )  # fmt: skip
    handshake.driver = Mock(**{"hello.return_value": hello})
    return handshake


@asynccontextmanager
async def answers(
    config: NodeConfig, handshake: Handshake, node: RegionNode | None = None
) -> AsyncIterator[None]:
    """Let node 11, or another one, answer the handshakes of regions."""
    server = PeerServer(PORTS.network, handshake)
    node = node or config.siblings[0]
    await server.start(*split(node.peer))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def test_INV_BI4_it_is_written_down_and_a_second_word_changes_nothing(
    raw: dict[str, Any],
) -> None:
    config = config_of(raw)
    would = await give_birth(config, PORTS, no_history_elsewhere=True, dry_run=True)
    assert would is BirthOutcome.WOULD_BE_FOUNDED
    assert not is_there(config)
    assert await give_birth(config, PORTS, no_history_elsewhere=True) is BirthOutcome.FOUNDED
    identity = read_identity(PORTS.disk, Path(config.data_dir))
    assert identity is not None
    assert (identity.founds, identity.history, identity.node_id) == (True, None, 12)
    again = await give_birth(config, PORTS, no_history_elsewhere=True)
    assert again is BirthOutcome.BORN_ALREADY
    assert read_identity(PORTS.disk, Path(config.data_dir)) == identity


async def test_INV_BI4_a_node_that_waited_for_the_quorum_may_begin_it(raw: dict[str, Any]) -> None:
    config = config_of(raw)
    folder = Path(config.data_dir)
    PORTS.disk.make_dirs(folder)
    waited = new_identity("c1", "eu", 12, PORTS.chance)
    write_identity(PORTS.disk, folder, waited)
    assert await give_birth(config, PORTS, no_history_elsewhere=True) is BirthOutcome.FOUNDED
    identity = read_identity(PORTS.disk, folder)
    assert identity == msgspec.structs.replace(waited, founds=True)


async def test_INV_BI4_a_node_that_has_joined_already_begins_nothing(raw: dict[str, Any]) -> None:
    config = config_of(raw)
    folder = Path(config.data_dir)
    PORTS.disk.make_dirs(folder)
    joined = msgspec.structs.replace(new_identity("c1", "eu", 12, PORTS.chance), joined=BIRTH)
    write_identity(PORTS.disk, folder, joined)
    outcome = await give_birth(config, PORTS, no_history_elsewhere=True)
    assert outcome is BirthOutcome.BORN_ALREADY
    assert read_identity(PORTS.disk, folder) == joined


@pytest.mark.parametrize("whose", ["another node's", "an older version's"])
async def test_INV_BI4_a_folder_that_is_not_this_nodes_begins_nothing(
    raw: dict[str, Any], whose: str
) -> None:
    config = config_of(raw)
    folder = Path(config.data_dir)
    PORTS.disk.make_dirs(folder)
    if whose == "another node's":
        write_identity(PORTS.disk, folder, new_identity("c1", "eu", 13, PORTS.chance))
    else:
        (folder / METADATA_FILE).touch()
    before = read_identity(PORTS.disk, folder)
    with pytest.raises(NodeRefused):
        await give_birth(config, PORTS, no_history_elsewhere=True)
    assert read_identity(PORTS.disk, folder) == before


async def test_INV_BI4_nothing_begins_while_the_other_nodes_cannot_be_asked(
    raw: dict[str, Any],
) -> None:
    config = config_of(raw)
    with pytest.raises(
        NodeRefused, match=r"^node 11 \(.*\) of region eu cannot be asked for its quorum"
    ):
        await give_birth(config, PORTS, no_history_elsewhere=False)
    assert not is_there(config), "INV-BI3"


@pytest.mark.parametrize("what", ["founds", "has history", "leads", "follows", "is about to lead"])
async def test_INV_BI4_an_emptied_node_begins_no_second_quorum(
    raw: dict[str, Any], what: str
) -> None:
    """Whatever the operator says: 1. A node is emptied. 2. Its operator takes it for the first of a new region."""
    config = config_of(raw)
    handshake = Handshake()
    sibling = new_identity("c1", "eu", 11, PORTS.chance)
    if what == "founds":
        sibling = msgspec.structs.replace(sibling, founds=True)
    elif what == "has history":
        sibling = msgspec.structs.replace(sibling, joined=BIRTH)
    elif what == "leads":
        handshake = leads(sibling)
    else:
        handshake = started(follower if what == "follows" else about_to_lead)
    handshake.identity = lambda: sibling
    async with answers(config, handshake):
        with pytest.raises(NodeRefused, match=r"^node 11 runs, and region eu has a quorum"):
            await give_birth(config, PORTS, no_history_elsewhere=True)
    assert not is_there(config)


async def test_INV_BI4_a_sibling_that_only_waits_needs_no_operators_word(
    raw: dict[str, Any],
) -> None:
    config = config_of(raw)
    handshake = Handshake()
    sibling = new_identity("c1", "eu", 11, PORTS.chance)
    handshake.identity = lambda: sibling
    async with answers(config, handshake):
        assert await give_birth(config, PORTS, no_history_elsewhere=False) is BirthOutcome.FOUNDED


@pytest.fixture
def primary(raw: dict[str, Any]) -> NodeConfig:
    """The same node, where the cluster is born at its region."""
    return config_of(raw | {"initial_primary_region": "eu"})


async def test_T32_no_birth_beside_a_region_of_several_nodes_that_nobody_leads_now(
    primary: NodeConfig,
) -> None:
    """It may have history: its nodes that follow do not tell, and who leads was not heard."""
    other = primary.others[0].nodes[0]
    waits = Handshake()
    waits.identity = lambda: new_identity("c1", "eu", 11, PORTS.chance)
    async with answers(primary, waits), answers(primary, started(follower), other):
        with pytest.raises(NodeRefused, match=r"region us \(.*\) cannot be asked for history"):
            await give_birth(primary, PORTS, no_history_elsewhere=False)
        assert not is_there(primary), "INV-BI3"
        assert await give_birth(primary, PORTS, no_history_elsewhere=True) is BirthOutcome.BORN


@pytest.mark.parametrize("says", [follower, about_to_lead])
async def test_T32_no_second_birth_at_an_emptied_node_whose_region_goes_on(
    primary: NodeConfig, says: Callable[[], PeerRefused]
) -> None:
    """Whatever the operator says: where a node of the primary region has a quorum, its region was born."""
    async with answers(primary, started(says)):
        with pytest.raises(NodeRefused, match=r"^node 11 of region eu has history"):
            await give_birth(primary, PORTS, no_history_elsewhere=True)
    assert not is_there(primary)


async def test_T32_a_second_birth_names_the_node_of_its_own_region_that_it_would_part(
    raw: dict[str, Any],
) -> None:
    """Other regions have history by then, too: this node joins the others of its own."""
    born = config_of({**raw, "initial_primary_region": "eu"})
    has_history = msgspec.structs.replace(new_identity("c1", "eu", 11, PORTS.chance), born=BIRTH)
    (us,) = born.others
    async with (
        answers(born, leads(has_history)),
        answers(born, leads(has_history), us.nodes[0]),
    ):
        for no_history_elsewhere in (True, False):
            with pytest.raises(NodeRefused) as refused:
                await give_birth(born, PORTS, no_history_elsewhere=no_history_elsewhere)
            assert str(refused.value).startswith("node 11 of region eu has history")
            assert "it joins the others of its region" in str(refused.value)
