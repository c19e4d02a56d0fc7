"""Records of `__tidemarks` that another version wrote."""

import msgspec
import pytest

from geo_replicator.tidemark import TermRecord, Tidemark, TidemarkError, decode, encode

TIDEMARK = Tidemark(
    domain="main", region_epoch=8, number=3, round=5, metadata_version=1, ledger={0: 7}, full=True
)
TERM = TermRecord(domain="main", region_epoch=8, term=2, number=3)


@pytest.mark.parametrize("record", [TIDEMARK, TERM])
@pytest.mark.parametrize("number", [0, 2])
def test_a_record_of_another_format_is_refused_with_what_to_do(
    record: Tidemark | TermRecord, number: int
) -> None:
    key, value = encode(record)
    fields = msgspec.msgpack.decode(value)
    assert fields[0] == 1
    other = msgspec.msgpack.encode([number, *fields[1:]])
    with pytest.raises(TidemarkError, match=rf"format {number}, this Tidemark reads 1: upgrade"):
        decode(key, other)
