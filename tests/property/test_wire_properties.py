"""Properties of the wire: frames, batches and codecs survive any split and any bytes; kio never aborts."""

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from region_broker.records.batches import (
    Origin,
    Record,
    RecordsError,
    build_batch,
    iter_records,
    iter_times,
)
from region_broker.records.compression import Codec, CompressionError, compress, decompress
from region_broker.wire.framing import LENGTH, FrameReader

ROOT = Path(__file__).parents[2]
FRAMES_PER_API = 100

records = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=40),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(
            st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3
        ).map(tuple),
        timestamp_ms=st.integers(0, 2**50),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_requests_of_every_version_never_abort_the_process(seed: int) -> None:
    """In a process of its own, with bounded memory: see `wire_fuzz`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.wire_fuzz",
         "--seed", str(seed), "--frames", str(FRAMES_PER_API)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.process
def test_mutated_requests_of_every_api_leave_a_live_node_serving_others() -> None:
    """See `wire_fuzz_node`: a good client beside them writes and reads all the time."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.wire_fuzz", "--frames", "0", "--socket", "32"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.randoms(use_true_random=False))
def test_frames_come_out_whole_however_the_stream_is_cut(
    frames: list[bytes], chance: random.Random
) -> None:
    stream = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    reader = FrameReader()
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        size = chance.randrange(1, 30)
        reader.feed(stream[position : position + size])
        position += size
        while (frame := reader.next_frame()) is not None:
            found.append(bytes(frame))
    assert found == frames
    assert not reader.mid_frame


@given(records, st.sampled_from(list(Codec)), st.integers(0, 2**40))
def test_records_survive_a_batch(written: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(written, codec=codec, base_offset=base_offset)
    read = list(iter_records(batch))
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in read] == [
        (r.key, r.value, r.headers, r.timestamp_ms) for r in written
    ]
    assert [r.offset for r in read] == [base_offset + index for index in range(len(written))]
    assert list(iter_times(batch)) == [(r.offset, r.timestamp_ms) for r in read]


@given(records, st.sampled_from(list(Codec)), st.data())
def test_damaged_batches_raise_records_error_and_nothing_else(
    written: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = bytearray(
        build_batch(
            written, codec=codec, origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0))
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    for walk in (iter_records, iter_times):
        with suppress(RecordsError):
            list(walk(batch))


@given(st.binary(max_size=2000), st.sampled_from([codec for codec in Codec if codec]))
def test_decompression_takes_any_bytes(garbage: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, garbage)) == garbage
    with suppress(CompressionError):
        decompress(codec, garbage)
