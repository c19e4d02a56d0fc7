"""Bodies of requests that tests draw, and what becomes of them in two readers."""

from typing import Any

from hypothesis import strategies as st

from region_broker.wire.codec.bounded import DecodeRefused, ManyElements
from region_broker.wire.codec.pieces import drained

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=12) | st.sampled_from(["t" * 126, "t" * 127, "t" * 128, "ü" * 9000])


def mutated(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw a body with some bytes changed, cut out or put in."""
    changed = bytearray(body)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(changed)))
        stop = at + draw(st.integers(0, 4))
        changed[at:stop] = draw(st.binary(max_size=4) | st.just(b"\x01\x07\x02ab"))
    return bytes(changed[: draw(st.integers(0, len(changed)) | st.just(len(changed)))])


def outcome(read: Any, pieces: Any, make_plain: Any) -> Any:
    """Return the plain request, None where it is refused."""
    try:
        try:
            return make_plain(read())
        except ManyElements:
            return make_plain(drained(pieces()))
    except DecodeRefused:
        return None
