"""The shards of the current load: whether they are served, and which of them has a transactional id.

INV-TD4  a request is served by the shard object of the current load, or refused; nothing is queued while
         loading (C23)
INV-TD6  all shards are loaded before one is served; a shard that cannot be read fails the load (C22)

Not here: loading them (`loading`), one at work (`shard_driver`).
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final

from idempotency.java_hash import ledger_shard
from txn_coordinator.serving.shard_driver import ShardDriver
from txn_coordinator.transitions import ORPHAN_PREFIX
from txn_coordinator.verdicts import TxnVerdict

_NAME_BYTES_MAX: Final = 32_767


class _Phase(Enum):
    RESIGNED = auto()
    LOADING = auto()
    ACTIVE = auto()


class LoadedShards:
    """All ledger shards of a coordinator, or none of them."""

    def __init__(self) -> None:
        """Start resigned."""
        self._phase = _Phase.RESIGNED
        self._shards: Sequence[ShardDriver] = ()
        self._request_number = 0

    def __iter__(self) -> Iterator[ShardDriver]:
        """Yield the shards of the current load, served or not."""
        return iter(self._shards)

    # ---- life

    def begin_loading(self, shards: Sequence[ShardDriver]) -> None:
        """Put new shards in the place of those before, which stop; clients get LOADING meanwhile."""
        self.resign()
        self._phase = _Phase.LOADING
        self._shards = shards

    def serve(self, shards: Sequence[ShardDriver]) -> None:
        """Serve what is loaded.

        Raises:
            LedgerFailed: a shard failed, or all were resigned, meanwhile.
        """
        for shard in shards:
            shard.expect_open()
        assert self._shards is shards, "shards of another load"
        for shard in shards:
            shard.serve()
        self._phase = _Phase.ACTIVE

    def resign(self) -> None:
        """Stop serving at once; everything unanswered gets NOT_COORDINATOR (C23)."""
        self._phase = _Phase.RESIGNED
        for shard in self._shards:
            shard.close(TxnVerdict.NOT_COORDINATOR)
        self._shards = ()

    # ---- whom to ask

    @property
    def active(self) -> bool:
        """Whether requests are served."""
        return self._phase is _Phase.ACTIVE

    def refusal(self) -> TxnVerdict:
        """Return what a request hears while nothing is served."""
        if self._phase is _Phase.LOADING:
            return TxnVerdict.LOADING
        return TxnVerdict.NOT_COORDINATOR

    def serving(self) -> Sequence[ShardDriver] | TxnVerdict:
        """Return all shards, or why none can be asked."""
        return self._shards if self.active else self.refusal()

    def of(self, transactional_id: str) -> ShardDriver:
        """Return the shard that an id belongs to; only while something is served."""
        return self._shards[ledger_shard(transactional_id, len(self._shards))]

    def serving_of(self, transactional_id: str) -> ShardDriver | TxnVerdict:
        """Return the shard of the id, or why it cannot be asked."""
        if not self.active:
            return self.refusal()
        name_is_bad = not transactional_id or transactional_id.startswith(ORPHAN_PREFIX)
        if name_is_bad or len(transactional_id.encode()) > _NAME_BYTES_MAX:
            return TxnVerdict.INVALID_REQUEST
        shard = self.of(transactional_id)
        return shard.closed_verdict if shard.closed else shard

    def next_request(self) -> int:
        """Return a request number that no other request of this coordinator has."""
        self._request_number += 1
        return self._request_number
