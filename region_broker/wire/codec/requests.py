"""Requests decoded: the one way in for whoever has a body, whole or in pieces.

An API with a fast path is read by it alone, any other by guard and kio; a fast path accepts what the general reader
accepts, and refuses what that refuses.
What handlers get is kio's class of the API and version, or what the fast path of the API returns.
Not here: answers (`answers`), headers (`wire.headers`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from idempotency.pieces import Pieces
from region_broker.wire.codec.entities import entity_pieces, read_entity
from region_broker.wire.codec.fast_paths import fetch, produce, transactions


class FastPath(NamedTuple):
    """The fast path of the requests of one API: at once (which raises `ManyElements`) and in pieces."""

    read: Callable[[int, memoryview], Any]
    read_pieces: Callable[[int, memoryview], Pieces[Any]]


FAST_PATHS: Final[Mapping[int, FastPath]] = {
    produce.KEY: FastPath(produce.read_request, produce.request_pieces),
    fetch.KEY: FastPath(fetch.read_request, fetch.request_pieces),
    transactions.ADD_KEY: FastPath(
        transactions.read_add, partial(entity_pieces, transactions.ADD_KEY)
    ),
    transactions.END_KEY: FastPath(
        transactions.read_end, partial(entity_pieces, transactions.END_KEY)
    ),
}


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Return the request in `body`; raises `DecodeRefused` or `UnknownSchema`.

    `ManyElements`: it is to be read in pieces (`request_pieces`).
    """
    fast = FAST_PATHS.get(api_key)
    return read_entity(api_key, version, body) if fast is None else fast.read(version, body)


def request_pieces(api_key: int, version: int, body: memoryview) -> Pieces[Any]:
    """Read the request in `body` in pieces; raises `DecodeRefused` or `UnknownSchema`."""
    fast = FAST_PATHS.get(api_key)
    if fast is None:
        return entity_pieces(api_key, version, body)
    return fast.read_pieces(version, body)
