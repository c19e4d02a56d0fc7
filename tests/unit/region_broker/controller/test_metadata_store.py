"""The metadata store: image and database are one, refused commands change nothing."""

import asyncio
import gc
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import aiosqlite
import msgspec
import pytest
from msgspec import structs
from sqlalchemy import create_engine

from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller import image_database
from region_broker.controller.cluster_commands import (
    BearDomain,
    DrainNode,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    RegisterNode,
    RemoveNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.image_database import (
    MetadataUnreadable,
    MetadataUnwritable,
    read_stored,
    upgrade,
)
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    CopyPartitions,
    CountNodeStart,
    CreateTopic,
    DeleteTopic,
    PutDomain,
    PutRegion,
    RecordLineage,
    SetNodeConfigs,
    SetTopicConfigs,
    TakeLeaderEpoch,
)
from region_broker.controller.metadata_image import (
    ALL_NODES,
    DeletedTopic,
    DomainImage,
    LineageEntry,
    MetadataImage,
    RegionImage,
    TopicImage,
)
from region_broker.controller.metadata_machine import decode_state
from region_broker.controller.metadata_tables import metadata
from tests.fixtures.cluster_images import (
    leader_epoch,
    let_in,
    life,
    main_domain,
    member,
    node,
    starts,
)
from tests.fixtures.metadata_stores import open_metadata
from tests.fixtures.older_metadata import forget_cluster, forget_deletions, forget_node_configs

ORDERS = TopicImage(topic_id=UUID(int=7), name="orders", partition_count=3, configs={"a": "1"})
EU = RegionImage(
    name="eu", ordinal=0, node_id=1, kafka_host="127.0.0.1", kafka_port=1,
    peer_host="127.0.0.1", peer_port=2, http_host="127.0.0.1", http_port=3,
)  # fmt: skip
MAIN = DomainImage(name="main", acting_region="eu", region_epoch=RegionEpoch(8), shard_count=4)
TAKEOVER = LineageEntry(
    region_epoch=RegionEpoch(17),
    acting_region="us",
    base_region_epoch=RegionEpoch(8),
    base_number=5,
    positions={"x/0": 9},
)


# Holds INV-M6.
async def test_every_command_survives_a_restart(tmp_path: Path) -> None:
    commands: list[Command] = [
        CreateTopic(ORDERS),
        SetTopicConfigs(ORDERS.topic_id, {"retention.ms": "5"}),
        SetNodeConfigs(1, {"log_level": "debug"}),
        SetNodeConfigs(ALL_NODES, {"group_count_max": "7"}),
        SetNodeConfigs(1, {"log_level": "error", "metrics_names_max": "5"}),
        SetNodeConfigs(2, {"log_level": "error"}),
        SetNodeConfigs(2, {}),
        PutRegion(EU),
        PutDomain(MAIN),
        BearDomain(MAIN),
        RecordLineage("main", TAKEOVER),
        CountNodeStart(),
        TakeLeaderEpoch(LeaderEpoch(17 << 16 | 1)),
    ]
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    for command in commands:
        await store.apply(command)
    live = store.image
    await store.close()
    stored = read_stored(tmp_path / "m.db")
    assert stored is not None
    assert stored.image == live
    again = await open_metadata(tmp_path / "m.db", new_cluster_id="other")
    assert again.image == live
    assert live.version == len(commands)
    assert live.main_domain.acting_region == "us"
    assert live.node_configs == {
        1: {"log_level": "error", "metrics_names_max": "5"},
        ALL_NODES: {"group_count_max": "7"},
    }
    await again.apply(DeleteTopic(ORDERS.topic_id))
    assert "orders" not in again.image.topics
    await again.close()


async def test_configs_of_a_node_are_set_only_where_they_are_as_expected(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(SetNodeConfigs(1, {"a": "1"}, expected={}))
    for asked, expected in ((1, {}), (1, {"a": "2"}), (ALL_NODES, {"a": "1"})):
        with pytest.raises(CommandRefused) as told:
            await store.apply(SetNodeConfigs(asked, {"b": "1"}, expected))
        assert told.value.code == "node-configs-changed"
    assert store.image.node_configs == {1: {"a": "1"}}
    await store.apply(SetNodeConfigs(1, {}, expected={"a": "1"}))
    assert store.image.node_configs == {}
    await store.close()


async def test_INV_M14_who_follows_the_image_hears_of_a_change_whose_caller_has_gone(
    tmp_path: Path,
) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    heard: list[MetadataImage] = []
    asking: list[asyncio.Task[MetadataImage]] = []

    def hear(image: MetadataImage) -> None:
        heard.append(image)
        for each in asking:
            each.cancel()  # behind its commit: whoever asked does not go on

    store.follow(hear)
    assert heard == [store.image]
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(store.apply(SetNodeConfigs(1, {"a": "1"})))
        asking.append(asked)
    assert asked.cancelled()
    assert heard[-1].node_configs == {1: {"a": "1"}}
    await store.close()


async def test_what_older_versions_wrote_has_no_configs_of_nodes(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(CreateTopic(ORDERS))
    await store.close()
    forget_cluster(tmp_path / "m.db")
    forget_node_configs(tmp_path / "m.db")
    again = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert (list(again.image.topics), again.image.node_configs) == (["orders"], {})
    await again.apply(SetNodeConfigs(1, {"a": "1"}))
    await again.close()
    older = msgspec.msgpack.encode([{"version": 3, "cluster_id": "c"}])
    assert decode_state(older).image.node_configs == {}


# Holds INV-M8.
async def test_T34_a_deletion_is_remembered_by_topic_id(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(CreateTopic(ORDERS))
    await store.apply(CopyPartitions(ORDERS.topic_id, 9, 0))
    await store.apply(DeleteTopic(ORDERS.topic_id, wall_ms=77))
    successor = structs.replace(ORDERS, topic_id=UUID(int=99))
    await store.apply(CreateTopic(successor))
    await store.apply(CopyPartitions(successor.topic_id, 7, 0))
    live = store.image
    assert live.deleted == {
        ORDERS.topic_id: DeletedTopic(topic=ORDERS, metadata_version=3, deleted_wall_ms=77)
    }
    await store.close()
    again = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert again.image == live
    await again.close()


GONE = UUID(int=99)


async def upgraded(path: Path, *before: Command) -> MetadataImage:
    """Return what an upgrade makes of the metadata of a version that kept no deletions."""
    store = await open_metadata(path, new_cluster_id="c")
    for command in before:
        await store.apply(command)
    await store.close()
    forget_deletions(path)
    again = await open_metadata(path, new_cluster_id="c")
    await again.close()
    return again.image


@pytest.mark.parametrize(
    ("region_epoch", "last"),
    [(8, 8 << 16 | 3), (17, 17 << 16 | 0xFFFF)],
    ids=["it acts", "it follows: all of that region epoch may be of that time"],
)
async def test_INV_M9_only_what_may_be_of_the_time_before_the_upgrade_may_have_been_deleted(
    tmp_path: Path, region_epoch: int, last: int
) -> None:
    domain = structs.replace(MAIN, region_epoch=region_epoch)
    taken = TakeLeaderEpoch(LeaderEpoch(8 << 16 | 3))
    before = CreateTopic(ORDERS), PutRegion(EU), PutDomain(MAIN), taken, PutDomain(domain)
    image = await upgraded(tmp_path / "m.db", *before)
    for older in (-1, 8 << 16, last):
        assert image.may_have_deleted(GONE, older)
    assert not image.may_have_deleted(GONE, last + 1), "it was made since"
    assert not image.may_have_deleted(ORDERS.topic_id, last), "it is here"


async def test_INV_M9_a_folder_that_had_no_history_has_deleted_nothing(tmp_path: Path) -> None:
    image = await upgraded(tmp_path / "m.db", PutRegion(EU))
    assert not image.may_have_deleted(GONE, -1)
    assert not image.may_have_deleted(GONE, 0)


# Holds INV-M4.
async def test_T19_T25_a_slow_candidate_is_refused_and_a_region_epoch_never_goes_back(
    tmp_path: Path,
) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(PutDomain(MAIN))
    await store.apply(RecordLineage("main", TAKEOVER))
    before = store.image
    await store.apply(RecordLineage("main", TAKEOVER))
    assert store.image.domains == before.domains, "the same entry again changes nothing"
    late = LineageEntry(
        region_epoch=RegionEpoch(16),
        acting_region="eu",
        base_region_epoch=RegionEpoch(8),
        base_number=5,
    )
    with pytest.raises(CommandRefused, match="comes too late"):
        await store.apply(RecordLineage("main", late))
    await store.apply(CreateTopic(ORDERS))
    with pytest.raises(CommandRefused, match="already exists"):
        await store.apply(CreateTopic(ORDERS))
    assert store.image.domains == before.domains
    await store.close()


async def test_nodes_and_leadership_survive_a_restart_and_an_older_database_has_none(
    tmp_path: Path,
) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(PutDomain(main_domain()))
    await store.close()
    forget_cluster(tmp_path / "m.db")
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert (store.image.nodes, store.image.leadership) == ({}, None)
    replaced = RegisterNode(node(2, folder=2, start=2, rack="r"))
    elected = ElectLeader(member(1), leader_epoch(1), 0)
    for command in (
        RegisterNode(node(1), starts(member(1), "s1", "s2")), UnfenceNode(1, life(1)), elected, *let_in(2), FenceNode(2, life(2)), replaced, *let_in(3),
        DrainNode(3, life(3)), RemoveNode(3, member(3).incarnation), *let_in(4), FenceNode(1, life(1)),
        UnfenceNode(2, life(2, 2)), ElectUnclean(member(2, 2), leader_epoch(2), 2), FenceNode(2, life(2, 2)),
    ):  # fmt: skip
        await store.apply(command)
    live = store.image
    assert live.nodes[2].former_incarnations
    assert live.has_removed(member(3))
    last_start = live.folders[member(1).incarnation].last_start
    assert last_start is not None
    assert last_start.incarnations == ("s2",)
    assert live.leadership == Leadership(
        leader=None, leader_epoch=leader_epoch(2), in_sync=(member(2, 2),), version=4, unclean=1
    )
    await store.close()
    stored = read_stored(tmp_path / "m.db")
    assert stored is not None
    assert stored.image == live
    again = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert again.image == live
    await again.close()


async def test_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.close()
    with closing(sqlite3.connect(tmp_path / "m.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(MetadataUnreadable, match="newer version"):
        await open_metadata(tmp_path / "m.db", new_cluster_id="c")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(MetadataUnreadable, match="not a readable"):
        await open_metadata(tmp_path / "m.db", new_cluster_id="c")


async def _almost_full(path: Path) -> aiosqlite.Connection:
    connection = await aiosqlite.connect(path)
    await connection.execute("PRAGMA max_page_count = 1")
    return connection


async def test_T36_a_disk_that_is_full_at_a_start_is_not_called_a_damaged_database(
    tmp_path: Path,
) -> None:
    with pytest.raises(MetadataUnwritable, match=r"is full.* no damage.*Give the disk room"):
        await open_metadata(tmp_path / "m.db", new_cluster_id="c", connect=_almost_full)


def _schema(path: Path) -> dict[str, Any]:
    """Return what each table has: columns, keys, uniqueness."""
    with closing(sqlite3.connect(path)) as database:
        names = [
            row[0]
            for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: (
                sorted(database.execute(f"PRAGMA table_info({name})").fetchall()),
                sorted(row[2:4] for row in database.execute(f"PRAGMA index_list({name})")),
            )
            for name in names
        }


async def test_a_new_database_has_what_the_migrations_make(tmp_path: Path) -> None:
    store = await open_metadata(tmp_path / "new.db", new_cluster_id="c")
    await store.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()
    new, migrated = _schema(tmp_path / "new.db"), _schema(tmp_path / "migrated.db")
    assert new == migrated
    assert len(new) == len(metadata.tables) + 1
    with closing(sqlite3.connect(tmp_path / "new.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0008",)]


async def test_a_database_whose_making_was_interrupted_gets_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE cluster (cluster_id VARCHAR NOT NULL, PRIMARY KEY (cluster_id))"
        )
        database.commit()
    store = await open_metadata(path, new_cluster_id="c")
    assert store.image.cluster_id == "c"
    await store.close()
    again = await open_metadata(path, new_cluster_id="other")
    assert again.image.cluster_id == "c"
    await again.close()


async def test_an_opening_that_is_given_up_leaves_no_connection_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is told to stop while it starts is cancelled in any of these steps."""

    def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(image_database, "_load", cancelled)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(asyncio.CancelledError):
            await open_metadata(tmp_path / "m.db", new_cluster_id="c")
        gc.collect()
    assert [str(each.message) for each in told] == []
