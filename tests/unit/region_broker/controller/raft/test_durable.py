"""A member's folder: what each crash point leaves (INV-RT1, INV-RT5, INV-RT6, INV-RF1, INV-RF4), what is refused (INV-RT2,
INV-RF2, INV-RF3), what a full or failing disk does (INV-RT3, INV-RT4).
"""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.controller.raft.durable import (
    CHANGE_BYTES_MAX,
    ENTRY_BYTES_MAX,
    ROOM_BYTES,
    RaftStore,
)
from region_broker.controller.raft.effects import Persist
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    HardState,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.failures import (
    RaftStoreDamaged,
    RaftStoreFailed,
    RaftStoreForeign,
    RaftStoreFull,
)
from region_broker.controller.raft.log_content import merged
from region_broker.controller.raft.log_file import FRAME_HEAD_BYTES, HEAD_BYTES
from region_broker.controller.raft.recovered import Recovered, member_of
from region_broker.controller.raft.snapshot_file import Piece
from tests.simulation.disk import Crashed, SimulatedDisk

FOLDER = Path("/data/raft")
LOG = FOLDER / "log"
SNAPSHOT = FOLDER / "snapshot"
ME = Member(1, UUID(int=1))
LARGEST = Member(2**31 - 1, UUID(int=2**128 - 1))
VOTE = Persist(HardState(Term(1), ME), None, ())
POWER_LOSSES = 12


def entry(index: int, term: int = 1, payload: bytes = b"x") -> Entry:
    return Entry(LogIndex(index), Term(term), EntryKind.COMMAND, payload)


def appended(*entries: Entry, cut_behind: int | None = None) -> Persist:
    return Persist(None, None if cut_behind is None else LogIndex(cut_behind), entries)


def point(index: int, term: int = 1) -> SnapshotPoint:
    return SnapshotPoint(LogIndex(index), Term(term), Membership((ME,)))


def opened(disk: SimulatedDisk) -> RaftStore:
    return RaftStore.open(disk, FOLDER, ME)[0]


def found(disk: SimulatedDisk) -> Recovered:
    store, recovered = RaftStore.open(disk, FOLDER, ME)
    store.close()
    return recovered


def with_entries(disk: SimulatedDisk, count: int) -> RaftStore:
    store = opened(disk)
    store.persist([VOTE, appended(*map(entry, range(1, count + 1)))])
    return store


# -- what comes back ---------------------------------------------------------------------------


def test_a_new_member_has_nothing_and_its_folder_is_its_own() -> None:
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    assert member_of(disk, FOLDER) is None
    store, recovered = RaftStore.open(disk, FOLDER, ME)
    assert recovered == Recovered(HardState(), None, ())
    store.close()
    assert member_of(disk, FOLDER) == ME


def test_what_was_persisted_is_read_back() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 3)
    store.persist([Persist(HardState(Term(2)), LogIndex(2), (entry(3, 2, b"new"),))])
    disk.power_loss(random.Random(0))
    assert found(disk) == Recovered(
        HardState(Term(2)), None, (entry(1), entry(2), entry(3, 2, b"new"))
    )


def test_several_wishes_are_one_frame_and_one_sync() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    store.make_room(1000)
    syncs: list[str] = []
    disk.fault = lambda operation, path: syncs.append(operation)
    store.persist([VOTE, appended(entry(1)), appended(entry(2))])
    assert syncs == ["pwrite", "fdatasync"]


def test_wishes_are_merged_as_if_one_came_after_the_other() -> None:
    assert merged([appended(entry(5), entry(6)), appended(entry(6, 2), cut_behind=5)]).entries == (
        entry(5),
        entry(6, 2),
    )
    cut_deeper = merged(
        [appended(entry(5), cut_behind=4), appended(entry(3, 2), cut_behind=2), VOTE]
    )
    assert (cut_deeper.cut_behind, cut_deeper.entries) == (2, (entry(3, 2),))
    assert cut_deeper.hard_state == VOTE.hard_state
    assert merged([appended(entry(3), cut_behind=2), appended(entry(3, 2), cut_behind=2)]) == (
        merged([appended(entry(3, 2), cut_behind=2)])
    )


def test_a_snapshot_takes_the_place_of_the_log_up_to_it() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 5)
    store.keep_snapshot(point(3), b"image")
    store.drop_log(LogIndex(2))
    assert store.image() == b"image"
    disk.power_loss(random.Random(0))
    assert found(disk) == Recovered(
        HardState(Term(1), ME), (point(3), b"image"), (entry(4), entry(5))
    )


def test_the_bytes_of_what_was_dropped_are_gone() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    store.persist(
        [VOTE, appended(*(entry(index, payload=bytes(10_000)) for index in range(1, 21)))]
    )
    store.keep_snapshot(point(19), b"")
    store.drop_log(LogIndex(19))
    assert disk.file_size(LOG) < 12_000


def test_votes_alone_do_not_let_the_file_grow_for_ever() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    for term in range(1, 20_000):
        store.make_room(CHANGE_BYTES_MAX)
        store.persist([Persist(HardState(Term(term), ME), None, ())])
    assert disk.file_size(LOG) < 1_200_000
    assert found(disk).hard_state == HardState(Term(19_999), ME)


def test_a_leader_s_snapshot_is_installed_piece_after_piece() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    store.persist([Persist(HardState(Term(3)), None, ())])  # whoever hears of a term notes it
    store.keep_piece(Piece(point(9, 3), 0, b"lost", last=False))
    store.keep_piece(Piece(point(10, 3), 0, b"one ", last=False))
    store.keep_piece(Piece(point(10, 3), 4, b"two", last=True))
    store.persist([appended(entry(11, 3))])
    disk.power_loss(random.Random(0))
    assert found(disk) == Recovered(HardState(Term(3)), (point(10, 3), b"one two"), (entry(11, 3),))


def test_INV_RF4_nothing_of_a_larger_snapshot_that_never_came_whole_is_in_the_next_one() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    store.persist([Persist(HardState(Term(3)), None, ())])  # whoever hears of a term notes it
    store.keep_piece(Piece(point(9, 3), 0, bytes(5_000), last=False))
    store.keep_piece(Piece(point(10, 3), 0, b"one two", last=True))
    assert store.image() == b"one two"
    disk.power_loss(random.Random(0))
    assert found(disk).snapshot == (point(10, 3), b"one two")


def test_INV_RF5_a_snapshot_of_ones_own_leaves_the_pieces_of_a_leaders_alone() -> None:
    """1. A leader's snapshot at 10 comes in pieces. 2. What was on its way before is committed: 1 and 2 are snapshotted here.
    3. The next piece of the former comes."""
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    store.persist([Persist(HardState(Term(3)), None, ())])  # whoever hears of a term notes it
    store.keep_piece(Piece(point(10, 3), 0, b"one ", last=False))
    store.keep_snapshot(point(2), b"own")
    assert store.image() == b"own"
    store.keep_piece(Piece(point(10, 3), 4, b"two", last=True))
    assert store.image() == b"one two"
    disk.power_loss(random.Random(0))
    assert found(disk).snapshot == (point(10, 3), b"one two")


def test_a_snapshot_is_read_in_pieces() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.keep_snapshot(point(1), b"abcde")
    assert store.read_piece(0, 3) == Piece(point(1), 0, b"abc", last=False)
    assert store.read_piece(3, 3) == Piece(point(1), 3, b"de", last=True)
    assert store.read_piece(6, 3) == Piece(point(1), 0, b"abc", last=False)
    store.keep_snapshot(point(1), b"")
    assert store.read_piece(0, 3) == Piece(point(1), 0, b"", last=True)


def test_no_wish_takes_more_room_than_is_asked_for_it() -> None:
    disk = SimulatedDisk()
    store = RaftStore.open(disk, FOLDER, LARGEST)[0]
    before = disk.file_size(LOG)
    huge = Term(2**62)
    store.persist([Persist(HardState(huge, LARGEST), None, ())])
    assert disk.file_size(LOG) - before <= CHANGE_BYTES_MAX
    before = disk.file_size(LOG)
    store.persist(
        [Persist(HardState(huge, LARGEST), LogIndex(0), (entry(1, huge, bytes(70_000)),))]
    )
    assert disk.file_size(LOG) - before <= CHANGE_BYTES_MAX + ENTRY_BYTES_MAX + 70_000


# -- crash points ------------------------------------------------------------------------------


def persist_more(store: RaftStore) -> None:
    store.persist([Persist(HardState(Term(2)), LogIndex(3), (entry(4, 2, bytes(5000)),))])


def keep_and_drop(store: RaftStore) -> None:
    store.keep_snapshot(point(4), b"image")
    store.drop_log(LogIndex(4))


def install(store: RaftStore) -> None:
    store.keep_piece(Piece(point(9), 0, b"whole", last=True))


def recover_again(store: RaftStore) -> None:
    store.close()


BASE = Recovered(HardState(Term(1), ME), None, tuple(map(entry, range(1, 6))))
STEPS: dict[Callable[[RaftStore], None], Recovered] = {
    persist_more: Recovered(
        HardState(Term(2)), None, (*BASE.entries[:3], entry(4, 2, bytes(5000)))
    ),
    keep_and_drop: Recovered(BASE.hard_state, (point(4), b"image"), (entry(5),)),
    install: Recovered(BASE.hard_state, (point(9), b"whole"), ()),
    recover_again: BASE,
}


def later_vote(recovered: Recovered) -> Persist:
    return Persist(HardState(Term(recovered.hard_state.term + 1), ME), None, ())


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
def test_at_every_crash_point_all_is_there_or_nothing_and_stays_so(
    step: Callable[[RaftStore], None], power: bool
) -> None:
    after, crash_at, crashed = STEPS[step], 0, True
    while crashed:
        for seed in range(POWER_LOSSES):
            crashed = _crash_once(step, after, crash_at, power=power, seed=seed)
        crash_at += 1
    assert crash_at > 1


def _crash_once(
    step: Callable[[RaftStore], None], after: Recovered, crash_at: int, *, power: bool, seed: int
) -> bool:
    """Crash at that operation, start, vote, and lose the power: the vote is there, and all that the start found."""
    disk, rng, crashed = SimulatedDisk(), random.Random(seed), False
    store = with_entries(disk, 5)
    disk.crash_after(crash_at)
    try:
        step(store)
        opened(disk)
    except Crashed:
        crashed = True
    if power:
        disk.power_loss(rng)
    else:
        disk.process_killed()
    store, recovered = RaftStore.open(disk, FOLDER, ME)
    assert recovered in ([BASE, after] if crashed else [after])
    vote = later_vote(recovered)
    store.persist([vote])
    disk.power_loss(rng)
    assert vote.hard_state is not None
    assert found(disk) == Recovered(vote.hard_state, recovered.snapshot, recovered.entries)
    return crashed


def test_what_a_failed_sync_left_in_memory_is_not_trusted_before_it_is_written_again() -> None:
    """INV-RT6: 1. A vote's sync fails. 2. The next start reads it from memory, and answers by it. 3. The power goes."""
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    disk.fault = failing("fdatasync", errno.EIO)
    with pytest.raises(RaftStoreFailed):
        store.persist([Persist(HardState(Term(7), ME), None, ())])
    disk.process_killed()
    recovered = found(disk)
    disk.power_loss(random.Random(0))
    assert found(disk) == recovered


# -- what is refused ---------------------------------------------------------------------------


def test_another_member_s_folder_is_refused() -> None:
    """INV-RE2."""
    disk = SimulatedDisk()
    opened(disk).close()
    for other in (Member(2, ME.incarnation), Member(ME.node_id, UUID(int=9))):
        with pytest.raises(
            RaftStoreForeign, match=r"/data/raft is the folder of member 1/00000000"
        ):
            RaftStore.open(disk, FOLDER, other)


def test_a_damaged_frame_in_front_of_a_sound_one_is_refused() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.persist([appended(entry(2))])
    store.close()
    disk.damage(LOG, HEAD_BYTES + FRAME_HEAD_BYTES)
    with pytest.raises(
        RaftStoreDamaged,
        match=r"/data/raft/log.*byte 48 on.*start it with an empty one.*joins as a new member",
    ):
        opened(disk)


def test_a_torn_last_frame_is_cut_off() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    size = disk.file_size(LOG)
    store.persist([appended(entry(2, payload=bytes(5000)))])
    store.close()
    disk.damage(LOG, disk.file_size(LOG) - 20)
    assert found(disk).entries == (entry(1),)
    assert disk.file_size(LOG) == size


@pytest.mark.parametrize("position", range(32))
def test_a_head_that_is_damaged_is_refused(position: int) -> None:
    disk = SimulatedDisk()
    opened(disk).close()
    disk.damage(LOG, position)
    with pytest.raises(RaftStoreDamaged):
        opened(disk)


def test_bytes_of_a_payload_are_never_taken_for_a_frame() -> None:
    """INV-RF3: a caller writes the bytes of a sound frame as a command, and the frame that holds it is torn."""
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.close()
    frame = bytes(disk.content(LOG)[HEAD_BYTES:])
    for shift in range(16):
        store = opened(disk)
        store.persist([appended(entry(2, payload=bytes(shift) + frame + bytes(100)), cut_behind=1)])
        store.close()
        disk.damage(LOG, disk.file_size(LOG) - 20)
        assert found(disk).entries == (entry(1),)


def test_a_log_without_its_snapshot_and_a_snapshot_without_its_log_are_refused() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 3)
    keep_and_drop_at(store, 2)
    older = bytes(disk.content(SNAPSHOT))
    keep_and_drop_at(store, 3)
    store.close()
    newest = bytes(disk.content(SNAPSHOT))
    disk.content(SNAPSHOT)[:] = older
    with pytest.raises(RaftStoreDamaged, match="starts behind 3, and the snapshot is at 2"):
        opened(disk)
    disk.remove(SNAPSHOT)
    with pytest.raises(RaftStoreDamaged, match="starts behind 3, and there is no snapshot"):
        opened(disk)
    disk.write_file_atomic(SNAPSHOT, newest)
    disk.remove(LOG)
    with pytest.raises(RaftStoreDamaged, match="missing, and the snapshot beside it is there"):
        opened(disk)


def keep_and_drop_at(store: RaftStore, index: int) -> None:
    store.keep_snapshot(point(index), b"image")
    store.drop_log(LogIndex(index))


def test_every_flipped_bit_of_a_snapshot_is_noticed() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.keep_snapshot(point(1), b"image")
    store.close()
    for position in range(disk.file_size(SNAPSHOT)):
        disk.damage(SNAPSHOT, position)
        with pytest.raises(RaftStoreDamaged):
            opened(disk)
        disk.damage(SNAPSHOT, position)
    assert found(disk).snapshot == (point(1), b"image")


@pytest.mark.parametrize("size_bytes", [0, 11, 12, 30, 60])
def test_a_snapshot_that_ends_too_early_is_refused(size_bytes: int) -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.keep_snapshot(point(1), b"image")
    store.close()
    del disk.content(SNAPSHOT)[size_bytes:]
    with pytest.raises(RaftStoreDamaged):
        opened(disk)


@pytest.mark.parametrize(
    "wrong",
    [
        appended(entry(3)),
        appended(entry(1)),
        appended(entry(2, 0)),
        appended(cut_behind=2),
        Persist(HardState(Term(0)), None, ()),
    ],
)
def test_a_core_that_asks_for_a_log_with_gaps_is_stopped_before_anything_is_written(
    wrong: Persist,
) -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    with pytest.raises(AssertionError):
        store.persist([wrong])
    assert found(disk).entries == (entry(1),)


def test_the_log_is_not_cut_into_what_the_snapshot_holds() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 3)
    keep_and_drop_at(store, 2)
    with pytest.raises(AssertionError):
        store.persist([appended(entry(2, 2), cut_behind=1)])
    with pytest.raises(AssertionError):
        store.drop_log(LogIndex(3))


# -- failing and full disks --------------------------------------------------------------------


def failing(wanted: str, number: int, times: int = 1) -> Callable[[str, Path], None]:
    """Return a fault: that operation fails so often."""
    left = [times]

    def fault(operation: str, path: Path) -> None:
        if operation == wanted and left[0]:
            left[0] -= 1
            raise OSError(number, "planted", str(path))

    return fault


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_after_a_write_or_sync_that_failed_nothing_touches_the_disk_again(operation: str) -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    disk.fault = failing(operation, errno.EIO)
    with pytest.raises(RaftStoreFailed, match="not tried again"):
        store.persist([appended(entry(2))])
    before = disk.operations
    with pytest.raises(RaftStoreFailed):
        store.persist([appended(entry(2))])
    with pytest.raises(RaftStoreFailed):
        store.make_room(1)
    with pytest.raises(RaftStoreFailed):
        store.keep_snapshot(point(1), b"")
    with pytest.raises(RaftStoreFailed):
        store.expect_room(1)
    assert disk.operations == before


def test_a_sync_for_which_the_disk_is_too_full_is_a_failed_sync() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    disk.fault = failing("fdatasync", errno.ENOSPC)
    with pytest.raises(RaftStoreFailed):
        store.persist([appended(entry(2))])


def test_a_full_disk_refuses_and_the_store_goes_on() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.make_room(CHANGE_BYTES_MAX)
    disk.room_bytes = 0
    with pytest.raises(RaftStoreFull, match="/data/raft/log has no room"):
        store.make_room(2 * ROOM_BYTES)
    store.make_room(ROOM_BYTES)  # taken already
    store.persist([Persist(HardState(Term(2)), None, ())])
    disk.power_loss(random.Random(0))
    assert found(disk) == Recovered(HardState(Term(2)), None, (entry(1),))


def test_a_write_that_did_not_fit_is_taken_back_with_the_room_behind_it() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    size = disk.file_size(LOG)
    disk.room_bytes = 0
    with pytest.raises(RaftStoreFull):
        store.persist([appended(entry(2, payload=bytes(ROOM_BYTES)))])
    assert disk.file_size(LOG) == size
    with pytest.raises(RaftStoreFull):
        store.make_room(1)
    disk.room_bytes = None
    store.persist([appended(entry(2))])
    assert found(disk).entries == (entry(1), entry(2))


def test_where_no_block_is_written_twice_a_write_into_room_that_was_taken_may_not_fit() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    size = disk.file_size(LOG)
    store.make_room(100)
    disk.fault = failing("pwrite", errno.EDQUOT)
    with pytest.raises(RaftStoreFull):
        store.persist([appended(entry(2))])
    assert disk.file_size(LOG) == size
    disk.room_bytes = 0
    with pytest.raises(RaftStoreFull):
        store.make_room(100)


def test_what_cannot_be_taken_back_closes_the_store() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    disk.room_bytes = 0
    disk.fault = failing("truncate", errno.EIO)
    with pytest.raises(RaftStoreFailed):
        store.persist([appended(entry(2))])
    with pytest.raises(RaftStoreFailed):
        store.persist([VOTE])


def test_a_snapshot_that_does_not_fit_leaves_nothing_and_the_one_before_in_force() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    store.keep_snapshot(point(1), b"first")
    disk.room_bytes = 200
    with pytest.raises(RaftStoreFull):
        store.keep_snapshot(point(2), bytes(1000))
    assert disk.list_dir(FOLDER) == ["log", "snapshot"]
    assert store.image() == b"first"
    disk.room_bytes = None
    store.keep_snapshot(point(2), b"second")
    assert found(disk).snapshot == (point(2), b"second")


def test_a_log_that_cannot_be_written_anew_stays_as_it_is() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    store.persist([VOTE, appended(entry(1, payload=bytes(5000)), entry(2, payload=bytes(5000)))])
    store.keep_snapshot(point(1), b"")
    disk.room_bytes = 100
    store.drop_log(LogIndex(1))
    store.persist([Persist(HardState(Term(2)), None, ())])
    disk.room_bytes = None
    store.keep_snapshot(point(2), b"")
    store.drop_log(LogIndex(2))  # shorter than what was begun before
    disk.power_loss(random.Random(0))
    assert found(disk) == Recovered(HardState(Term(2)), (point(2), b""), ())


def test_room_that_was_taken_is_there_when_the_log_is_written_anew() -> None:
    """INV-RT4: the steps behind a snapshot that was installed count on it."""
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    store.make_room(5000)
    install(store)
    disk.room_bytes = 0
    assert store.has_room(4000)
    store.persist([Persist(HardState(Term(2)), None, (entry(10, 2, bytes(3000)),))])


def test_a_volume_without_room_is_told_before_a_piece_is_taken() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    disk.room_bytes = 999
    store.expect_room(999)
    with pytest.raises(RaftStoreFull):
        store.expect_room(1000)


def test_a_piece_that_does_not_fit_closes_the_store_as_the_core_is_behind_it() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    disk.room_bytes = 0
    with pytest.raises(RaftStoreFailed):
        store.keep_piece(Piece(point(1), 0, b"piece", last=False))


def test_a_start_removes_what_was_not_finished() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 1)
    store.keep_piece(Piece(point(9), 0, b"piece", last=False))
    assert disk.list_dir(FOLDER) == ["log", "snapshot.leader.tmp"]
    disk.process_killed()
    found(disk)
    assert disk.list_dir(FOLDER) == ["log"]


def test_what_an_earlier_life_left_beside_the_log_gets_into_no_new_one() -> None:
    disk = SimulatedDisk()
    store = with_entries(disk, 2)
    disk.write_file_atomic(FOLDER / "log.tmp", bytes(10_000))
    keep_and_drop_at(store, 2)
    assert disk.file_size(LOG) < 1000
