"""Files beside segments: what is in them, and damage."""

import pytest

from region_broker.log.indexes.aborted_index import decode_aborted
from region_broker.log.indexes.checked_file import FrameError, pack_frame


def test_INV_A2_an_aborted_index_that_ends_inside_an_entry_is_damage() -> None:
    with pytest.raises(FrameError, match="inside an entry"):
        decode_aborted(pack_frame(b"TMAX", 1, bytes(23)))
