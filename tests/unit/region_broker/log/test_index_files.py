"""Files beside segments: what is in them, and damage."""

import pytest

from region_broker.log.cleaning.key_map import KeyMap
from region_broker.log.indexes.aborted_index import decode_aborted
from region_broker.log.indexes.checked_file import FrameError, pack_frame
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.log.indexes.sparse_index import SegmentSummary, SparseIndex, decode_index


def test_INV_A2_an_aborted_index_that_ends_inside_an_entry_is_damage() -> None:
    with pytest.raises(FrameError, match="inside an entry"):
        decode_aborted(pack_frame(b"TMAX", 1, bytes(23)))


def test_an_offset_index_that_was_read_again_goes_on_at_the_same_distance() -> None:
    index = SparseIndex(100)
    for number in range(3):
        index.note_batch(number, 60 * number, -1)
    assert len(index) == 2
    read, _ = decode_index(index.encode(SegmentSummary(180, 3, -1, -1)), 100)
    for number, entries in ((3, 2), (4, 3)):
        for each in (index, read):
            each.note_batch(number, 60 * number - 1, -1)
            assert (number, len(each)) == (number, entries)


@pytest.mark.parametrize(
    "rows", [((2, 0), (1, 5)), ((1, 0), (1, 5)), ((1, 5), (2, 5)), ((1, 5), (2, 4))]
)
def test_leader_epochs_or_offsets_that_do_not_grow_are_damage(
    rows: tuple[tuple[int, int], ...],
) -> None:
    text = "".join(f"{epoch} {start}\n" for epoch, start in rows)
    with pytest.raises(FrameError, match="do not grow"):
        LeaderEpochs.decode(pack_frame(b"TMLE", 1, text.encode()))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 5000])
def test_INV_CLK1_a_key_takes_sixteen_bytes_at_most_and_is_told_from_all_others(size: int) -> None:
    newest = KeyMap(10)
    key = bytes(size)
    newest.put(key, 7)
    newest.keep(8)
    assert (newest.newest(key), newest.newest(key + b"1"), newest.newest(key[1:])) == (7, -1, -1)
    assert max(map(len, newest._newest)) <= 16
    if size >= 16:
        (digest,) = newest._newest
        assert newest.newest(digest) == -1  # a key of that many bytes is no digest
