"""What an attack on the metadata's log broke: ends of a group that nobody heard of, folders that are not one."""

import asyncio
import dataclasses
import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from region_broker.controller import metadata_store
from region_broker.controller.image_database import MetadataUnreadable, MetadataUnwritable
from region_broker.controller.metadata_commands import (
    CountNodeStart,
    CreateTopic,
    PutDomain,
    RecordLineage,
)
from region_broker.controller.metadata_store import QUORUM_FOLDER, Life, MetadataStore, stored_image
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.entries import LogIndex, Membership, SnapshotPoint, Term
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.snapshot_file import Piece
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.metadata_stores import MEMBER, open_metadata
from tests.fixtures.older_metadata import forget_cluster, forget_node_configs
from tests.simulation.disk import SimulatedDisk
from tests.simulation.simulated_loop import run_simulated
from tests.unit.region_broker.controller.test_metadata_log import FOLDER, ORDERS, opened
from tests.unit.region_broker.controller.test_metadata_store import MAIN, TAKEOVER


def no_room_for_frames(operation: str, path: Path) -> None:
    """Be a file system that needs room for each write, also for one into bytes that are there."""
    if operation == "pwrite" and path.name == "log":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


async def opened_in_new_folder() -> tuple[SimulatedDisk, MetadataStore]:
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    return disk, await opened(disk)


@pytest.mark.parametrize("is_run", [True, False])
def test_room_that_was_taken_and_is_denied_ends_the_changes_not_the_node(*, is_run: bool) -> None:
    """`RaftStoreFull` of `persist` ended the group: `run` raised it into the node, or nobody said that it had ended."""

    async def denied() -> None:
        disk, store = await opened_in_new_folder()
        async with asyncio.TaskGroup() as tasks:
            if is_run:
                tasks.create_task(store.run())
                await asyncio.sleep(0)
            disk.fault = no_room_for_frames
            for _ in range(2):
                with pytest.raises(MetadataUnwritable, match=r"known after a restart.*Make room"):
                    await store.apply(CreateTopic(ORDERS))
                assert "no room" in store.failed
        await store.close()
        disk.process_killed()
        again = await opened(disk)
        await again.apply(CountNodeStart())
        await again.close()

    run_simulated(denied(), 1)


def test_a_log_that_fails_under_a_cancelled_caller_is_told() -> None:
    """Before `run` only whoever asked heard of it: who was cancelled let the node go on as if nothing had happened."""

    async def cancelled() -> None:
        disk, store = await opened_in_new_folder()
        disk.fail_by_chance(random.Random(1), 1.0, (errno.EIO,), {"fdatasync"})
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(store.apply(CreateTopic(ORDERS)))
            await asyncio.sleep(0)
            asking.cancel()
        assert "Mend the disk" in store.failed
        with pytest.raises(MetadataUnwritable, match="known after a restart"):
            await store.apply(CountNodeStart())
        await store.run()
        assert "Mend the disk" in store.failed
        await store.close()

    run_simulated(cancelled(), 1)


def with_small_snapshots() -> Callable[..., GroupSetup]:
    """Return what sets a group up as a store does, but for a snapshot behind each larger command."""
    setup = metadata_store._setup

    def small(life: Life, folder: Path, *others: Any) -> GroupSetup:
        return dataclasses.replace(setup(life, folder, *others), snapshot_after_bytes=200)

    return small


def test_a_command_that_is_durable_is_acknowledged_though_the_snapshot_behind_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller was told that it may not be, while the image had it already: a topic without partitions."""

    def no_snapshot(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.name.startswith("snapshot"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(metadata_store, "_setup", with_small_snapshots())

    async def failing() -> None:
        disk, store = await opened_in_new_folder()
        disk.fault = no_snapshot
        image = await store.apply(CreateTopic(ORDERS))
        assert list(image.topics) == ["orders"]
        with pytest.raises(MetadataUnwritable, match="known after a restart"):
            await store.apply(CountNodeStart())
        assert "keeping a snapshot" in store.failed
        assert store.image == image
        await store.close()
        disk.process_killed()
        again = await opened(disk)
        assert again.image == image
        await again.close()

    run_simulated(failing(), 1)


def downgraded(path: Path) -> None:
    """Let the database be as `downgrade` of its migration leaves it; the log stays beside it."""
    forget_cluster(path)
    forget_node_configs(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE quorum_position")
        database.execute("UPDATE alembic_version SET version_num = '0002'")


def delete_as_an_older_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM topics")
        database.execute("UPDATE counters SET value = value + 1 WHERE name = 'version'")


async def with_topic(path: Path) -> MetadataStore:
    """Make a store whose log has more than one command, close and downgrade it."""
    store = await open_metadata(path)
    for command in (CountNodeStart(), CreateTopic(ORDERS), CountNodeStart()):
        await store.apply(command)
    await store.close()
    downgraded(path)
    return store


async def test_INV_M13_what_a_version_without_log_changed_is_not_taken_back(tmp_path: Path) -> None:
    """1. A node is upgraded, and downgraded. 2. The older version deletes a topic. 3. The upgrade's log has that topic still."""
    path = tmp_path / "metadata.db"
    await with_topic(path)
    delete_as_an_older_version(path)
    for _ in range(2):
        with pytest.raises(
            MetadataUnreadable, match=r"has no log of the quorum.*Move .*quorum away"
        ):
            await open_metadata(path)
    shutil.rmtree(tmp_path / QUORUM_FOLDER)
    again = await open_metadata(path)
    assert not again.image.topics
    assert again.image.node_start_count == 2
    await again.close()


async def test_INV_M13_a_database_without_position_that_nobody_changed_is_that_of_the_log(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"
    store = await with_topic(path)
    again = await open_metadata(path)
    assert again.image == store.image
    await again.close()


async def test_an_older_log_beside_a_newer_snapshot_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start ended with an assertion: the next term was one that the snapshot had behind it."""
    path, log = tmp_path / "metadata.db", tmp_path / QUORUM_FOLDER / "log"
    store = await open_metadata(path)
    await store.close()
    older = log.read_bytes()
    for _ in range(2):  # a term each
        store = await open_metadata(path)
        await store.close()
    monkeypatch.setattr(metadata_store, "_setup", with_small_snapshots())
    store = await open_metadata(path)
    await store.apply(CreateTopic(ORDERS))
    await store.close()
    log.write_bytes(older)
    refusal = (
        r"no term behind 1, and the snapshot is of term 4.*restore the node's whole data folder"
    )
    with pytest.raises(MetadataUnreadable, match=refusal):
        stored_image(path, RealDisk())
    with pytest.raises(MetadataUnreadable, match=refusal):
        await open_metadata(path)


def test_a_snapshot_of_a_newer_version_is_refused_and_leaves_no_file_open() -> None:
    async def refused() -> None:
        disk = SimulatedDisk()
        disk.make_dirs(FOLDER)
        founded, _ = RaftStore.open(disk, FOLDER / QUORUM_FOLDER, MEMBER)
        point = SnapshotPoint(LogIndex(1), Term(1), Membership((MEMBER,)))
        founded.keep_piece(Piece(point, 0, b"newer", last=True))
        founded.close()
        with pytest.raises(MetadataUnreadable, match="written by a newer one"):
            await opened(disk)
        assert disk.open_files == 0

    run_simulated(refused(), 1)


async def test_a_takeover_that_cuts_very_many_logs_is_written_down(tmp_path: Path) -> None:
    """4 MiB, what one command could have, are the positions of 97,000 partitions: their takeover was refused each time."""
    store = await open_metadata(tmp_path / "metadata.db")
    await store.apply(PutDomain(MAIN))
    positions = {f"{UUID(int=topic).hex}/{n}": 1 << 40 for topic in range(120) for n in range(1000)}
    entry = structs.replace(TAKEOVER, positions=positions)
    await store.apply(RecordLineage("main", entry))
    await store.close()
    again = await open_metadata(tmp_path / "metadata.db")
    assert again.image.main_domain.lineage == (entry,)
    await again.close()
