"""Metadata through the log of a quorum of one: what a crash, a disk and an exchanged part leave of it."""

import asyncio
import errno
import itertools
import random
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_commands import (
    BearDomain,
    ChangeInSync,
    ElectLeader,
    FenceNode,
)
from region_broker.controller.image_database import (
    ImageDatabase,
    MetadataUnreadable,
    MetadataUnwritable,
    read_stored,
)
from region_broker.controller.leaders_metadata import LeadersMetadata
from region_broker.controller.leadership_rules import led_under
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    CountNodeStart,
    CreateTopic,
    DeleteTopic,
    TakeLeaderEpoch,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_machine import (
    WISH_BYTES,
    MachineState,
    Wish,
    decode_state,
    encode_command,
    encode_state,
    encode_wish,
    fold,
)
from region_broker.controller.metadata_store import (
    QUORUM_FOLDER,
    Life,
    MetadataStore,
    incarnation_of,
    stored_image,
)
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Member, Term
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.cluster_images import after, born, in_sync, let_in, life, main_domain, member
from tests.fixtures.cluster_images import leader_epoch as led_under_number
from tests.fixtures.metadata_stores import MEMBER, open_metadata
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import LoopClock, run_simulated
from tests.simulation.sqlite import SimulatedSqlite

ORDERS = TopicImage(topic_id=UUID(int=7), name="orders", partition_count=3)
FOLDER = Path("/data")
OTHER = Member(1, UUID(int=2))


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def entry(index: int, command: Command) -> Entry:
    return Entry(
        LogIndex(index),
        Term(1),
        EntryKind.COMMAND,
        encode_wish(UUID(int=index), msgspec.msgpack.encode(command)),
    )


def test_INV_M10_what_must_not_take_effect_changes_nothing_wherever_it_is_replayed() -> None:
    image = MetadataImage(version=0, cluster_id="c")
    commands: tuple[Command, ...] = (
        CreateTopic(ORDERS),
        CreateTopic(ORDERS),
        TakeLeaderEpoch(LeaderEpoch(5)),
    )
    entries = [entry(2 + at, command) for at, command in enumerate(commands)]
    entries.insert(0, Entry(LogIndex(1), Term(1), EntryKind.LEADER))
    state, applied = fold(MachineState(image), entries)
    folded = state.image
    assert [each.refusal and each.refusal.code for each in applied] == [None, "topic-exists", None]
    assert (list(folded.topics), folded.version, folded.last_leader_epoch) == (["orders"], 2, 5)
    assert decode_state(encode_state(state)) == state
    again = [msgspec.structs.replace(each, index=LogIndex(each.index + 9)) for each in entries]
    assert fold(state, again) == (state, []), "INV-M14: wished again, each is known"


@pytest.mark.parametrize(
    ("image", "leader_epoch", "is_refused"),
    [
        (in_sync(), None, False),
        (in_sync(), 1, False),
        (in_sync(), 2, True),  # another one leads by now
        (after(in_sync(), FenceNode(1, life(1))), 1, True),  # nobody does
        (born(), 1, True),
    ],
)
def test_INV_M22_what_a_leader_asked_for_counts_while_it_leads(
    image: MetadataImage, leader_epoch: int | None, is_refused: bool
) -> None:
    led = None if leader_epoch is None else led_under_number(leader_epoch)
    payload = encode_wish(UUID(int=1), msgspec.msgpack.encode(CreateTopic(ORDERS)), led)
    state, (applied,) = fold(
        MachineState(image), [Entry(LogIndex(9), Term(1), EntryKind.COMMAND, payload)]
    )
    assert (applied.refusal is not None, "orders" in state.image.topics) == (
        is_refused, not is_refused,
    )  # fmt: skip
    if applied.refusal is not None:
        assert applied.refusal.code == "not-acting"


def test_INV_M23_a_command_is_as_large_as_its_entry_leaves_it_room_for() -> None:
    command = CreateTopic(ORDERS)
    encoded = msgspec.msgpack.encode(command)
    payload = encode_wish(UUID(int=2**128 - 1), encoded, LeaderEpoch(2**31 - 1))
    assert payload == msgspec.msgpack.encode(
        Wish(UUID(int=2**128 - 1), command, LeaderEpoch(2**31 - 1))
    )
    assert len(payload) - len(encoded) <= WISH_BYTES
    assert encode_command(command, len(encoded) + WISH_BYTES) == encoded
    with pytest.raises(CommandRefused, match="Ask for less at once"):
        encode_command(command, len(encoded) + WISH_BYTES - 1)


def test_INV_M22_who_does_not_lead_asks_for_nothing_as_the_leader() -> None:
    image = in_sync()
    assert led_under(image, member(1)) == led_under_number(1)
    assert led_under(born(), member(1)) is None  # nobody is elected: a region of one node
    with pytest.raises(CommandRefused, match=r"node 1 leads under .*Ask again there"):
        led_under(image, member(2))
    with pytest.raises(CommandRefused, match="nobody leads under"):
        led_under(after(image, FenceNode(1, life(1))), member(1))


def test_INV_M22_what_waits_behind_other_changes_counts_under_the_leader_epoch_that_it_was_asked_under() -> (
    None
):
    """1. A leader asks for a change, which waits for others of this node. 2. Another one leads. 3. The first one is elected again."""
    me, other = member(1), member(2)
    led = [led_under_number(counter) for counter in range(4)]

    async def elected_again() -> None:
        disk = SimulatedDisk()
        disk.make_dirs(FOLDER)
        store = await opened(disk, me)
        leaders = LeadersMetadata(store)
        for command in (
            BearDomain(main_domain()), *let_in(1), ElectLeader(me, led[1], 0), *let_in(2),
            ChangeInSync(me, led[1], (me, other), 1),
        ):  # fmt: skip
            await store.apply(command)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(store.apply(ElectLeader(other, led[2], 2)))
            tasks.create_task(store.apply(ElectLeader(me, led[3], 3)))
            asked = tasks.create_task(refused(leaders.apply(CreateTopic(ORDERS))))
        assert store.image.leadership is not None
        assert store.image.leadership.leader_epoch == led[3]
        assert (asked.result(), "orders" in store.image.topics) == ("not-acting", False)
        await leaders.apply(CreateTopic(ORDERS))  # asked again, under the present one
        await store.close()

    run_simulated(elected_again(), 1)


async def refused(order: Awaitable[object]) -> str:
    """Return the code with which a command is refused, "" where it is not."""
    try:
        await order
    except CommandRefused as error:
        return error.code
    return ""


def test_a_log_that_this_version_does_not_know_is_not_read_in_part() -> None:
    unknown = Entry(
        LogIndex(1), Term(1), EntryKind.COMMAND, msgspec.msgpack.encode({"type": "Later"})
    )
    with pytest.raises(msgspec.MsgspecError):
        fold(MachineState(MetadataImage(version=0, cluster_id="c")), [unknown])


async def changed(path: Path) -> MetadataImage:
    """Make a store with a topic, and close it."""
    store = await open_metadata(path)
    await store.apply(CreateTopic(ORDERS))
    await store.close()
    return store.image


async def test_what_is_stored_is_read_without_a_change_also_where_the_database_lags(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metadata.db"
    await changed(path)
    shutil.copy(path, tmp_path / "older.db")
    store = await open_metadata(path)
    await store.apply(DeleteTopic(ORDERS.topic_id))
    await store.close()
    shutil.copy(tmp_path / "older.db", path)
    before = contents(tmp_path)
    assert stored_image(path, RealDisk()) == store.image
    assert contents(tmp_path) == before
    again = await open_metadata(path)
    assert again.image == store.image, "an older database is brought up to the log"
    await again.close()
    stored = read_stored(path)
    assert stored is not None
    assert stored.image == store.image


# Holds INV-M11.
async def test_INV_M12_a_database_that_cannot_be_written_keeps_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metadata.db"
    store = await open_metadata(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("BEGIN IMMEDIATE")  # holds the lock that a write needs
        other.execute("DELETE FROM counters WHERE name = 'none'")
        await store.apply(CreateTopic(ORDERS))
        other.rollback()
    assert "orders" in store.image.topics
    assert "It lags behind the quorum's log; nothing is lost" in caplog.text
    stored = read_stored(path)
    assert stored is not None
    assert not stored.image.topics
    await store.apply(CountNodeStart())
    await store.close()
    stored = read_stored(path)
    assert stored is not None
    assert stored.image == store.image


def _no_log(folder: Path) -> None:
    shutil.rmtree(folder / QUORUM_FOLDER)


def _older_log(folder: Path) -> None:
    _no_log(folder)
    shutil.copytree(folder / "older", folder / QUORUM_FOLDER)


@pytest.mark.parametrize(
    ("spoil", "reason"), [(_no_log, "is not there"), (_older_log, "ends at entry")]
)
async def test_INV_M13_a_log_that_lacks_what_the_database_says_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "metadata.db"
    store = await open_metadata(path)
    shutil.copytree(tmp_path / QUORUM_FOLDER, tmp_path / "older")
    await store.apply(CreateTopic(ORDERS))
    await store.close()
    spoil(tmp_path)
    for _ in range(2):  # nor is it mended by having been tried
        with pytest.raises(MetadataUnreadable, match=f"{reason}.*Give the whole data folder back"):
            await open_metadata(path)
    with pytest.raises(MetadataUnreadable, match=reason):
        stored_image(path, RealDisk())


async def test_INV_M13_the_log_of_another_folder_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "metadata.db", tmp_path / "other"
    await changed(path)
    other.mkdir()
    theirs = await open_metadata(other / "metadata.db", member=OTHER)
    await theirs.close()
    shutil.rmtree(tmp_path / QUORUM_FOLDER)
    shutil.copytree(other / QUORUM_FOLDER, tmp_path / QUORUM_FOLDER)
    with pytest.raises(MetadataUnreadable, match="is the log of member 1/00000000"):
        await open_metadata(path)
    assert incarnation_of(path, RealDisk()) == OTHER.incarnation
    with pytest.raises(MetadataUnreadable, match="exchanged or copied"):
        await open_metadata(other / "metadata.db", member=MEMBER)


async def test_a_damaged_log_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await changed(path)
    log = tmp_path / QUORUM_FOLDER / "log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    with pytest.raises(MetadataUnreadable, match=r"damaged frame.*restore the node's whole data"):
        await open_metadata(path)


# -- crashes and disks that fail ---------------------------------------------------------------


LIVES = itertools.count()


async def opened(disk: SimulatedDisk, who: Member = MEMBER) -> MetadataStore:
    life = Life(who, disk, LoopClock(), SeededChance(random.Random(next(LIVES))))
    return await MetadataStore.open(
        FOLDER / "metadata.db",
        life,
        new_cluster_id="c",
        connect=lambda path: SimulatedSqlite(path, disk),
    )


@pytest.mark.parametrize("end", ["kill", "power"])
def test_a_first_start_that_ends_anywhere_is_finished_by_the_next_one(end: str) -> None:
    """INV-M13: whatever was begun, database and log belong together."""

    async def ends_after(operations: int) -> bool:
        disk = SimulatedDisk()
        disk.make_dirs(FOLDER)
        disk.crash_after(operations)
        try:
            store = await opened(disk)
            await store.apply(CreateTopic(ORDERS))
            done = True
        except (Crashed, MetadataUnwritable):
            done = False
        if end == "kill":
            disk.process_killed()
        else:
            disk.power_loss(random.Random(operations))
        again = await opened(disk)
        assert again.image.cluster_id == "c"
        assert not done or "orders" in again.image.topics, "acknowledged"
        if "orders" not in again.image.topics:
            await again.apply(CreateTopic(ORDERS))
        await again.close()
        return done

    operations = 0
    while not run_simulated(ends_after(operations), 1):
        operations += 1
    assert operations > 20


def test_a_full_disk_refuses_a_command_and_changes_nothing() -> None:
    async def full() -> None:
        disk = SimulatedDisk()
        disk.make_dirs(FOLDER)
        store = await opened(disk)
        disk.room_bytes = 0
        big = CreateTopic(msgspec.structs.replace(ORDERS, configs={"a": "b" * 100_000}))
        with pytest.raises(MetadataUnwritable, match="disk of this member is full"):
            await store.apply(big)
        assert not store.image.topics
        assert not store.failed
        disk.room_bytes = None
        await asyncio.sleep(2)
        await store.apply(big)
        await store.close()

    run_simulated(full(), 1)


def test_a_disk_that_fails_ends_the_changes_until_the_next_start_shows_what_became_of_them() -> (
    None
):
    async def failing() -> None:
        disk = SimulatedDisk()
        disk.make_dirs(FOLDER)
        store = await opened(disk)
        disk.fail_by_chance(random.Random(1), 1.0, (errno.EIO,), {"fdatasync"})
        for _ in range(2):
            with pytest.raises(MetadataUnwritable, match="known after a restart"):
                await store.apply(CreateTopic(ORDERS))
            assert "start the node again" in store.failed
        assert not store.image.topics
        await store.close()
        disk.process_killed()
        disk.fault = None
        again = await opened(disk)
        await again.apply(CountNodeStart())
        await again.close()

    run_simulated(failing(), 1)


async def test_commands_of_a_running_store_are_carried_out_by_it_and_end_with_it(
    tmp_path: Path,
) -> None:
    store = await open_metadata(tmp_path / "metadata.db")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        await asyncio.gather(*(store.apply(CountNodeStart()) for _ in range(5)))
        assert store.image.node_start_count == 5
        store.stop()
        await running
    with pytest.raises(MetadataUnwritable):
        await store.apply(CountNodeStart())
    await store.close()


async def test_INV_M6_nobody_sees_a_command_before_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror would be told of a topic whose partitions are not open yet, and not be told again."""
    store = await open_metadata(tmp_path / "metadata.db")
    seen: list[bool] = []
    write = ImageDatabase.write

    async def looking(database: ImageDatabase, image: MetadataImage, position: LogPosition) -> None:
        await write(database, image, position)
        seen.append("orders" in store.image.topics)

    monkeypatch.setattr(ImageDatabase, "write", looking)
    await store.apply(CreateTopic(ORDERS))
    assert seen == [False]
    assert "orders" in store.image.topics
    await store.close()
