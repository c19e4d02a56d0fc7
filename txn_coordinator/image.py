"""The image of a ledger shard: those of its own rows from which replay gives the state that all of them give.

INV-LIM1  for every cut of a history: replay(rows of the image of what is below, then what is above) == replay(all); and
          an image of an image's rows, then of what is above, is the image of all
INV-LIM2  its rows are the ledger's, unchanged, in the ledger's order: the last of each key; the ROUND rows that gave
          the stamps of those decisions that take their id from their position; those that gave the round now and the
          round now released. What a tombstone removed is gone, and the tombstone with it
It looks at last rows only: a row that a later one replaced may have been unreadable.

Why that is enough: an entry is its last record (INV-TC9), and the gate takes no ROUND that is not higher than all before,
so leaving out some of those in between changes no stamp that is left. A kind of key that is unknown here is left out; the
version that brings one in must not read images of older versions.
Not here: the file (`region_broker.ledgers.image_file`), replay (`shard.replay`).
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from idempotency import ledger_records as lr
from idempotency.decision import NO_ROUND, round_number
from idempotency.identity import Round
from txn_coordinator.ports import LedgerCorrupt, LedgerPosition

LedgerRow: TypeAlias = tuple[LedgerPosition, bytes, bytes | None]

_ROUND_KEY: Final = lr.encode_round_key()
_PAIRS_KEY: Final = lr.encode_pairs_key()


class LedgerImage:
    """Takes rows in the ledger's order; `rows` may be asked for at any time."""

    __slots__ = ("_current", "_current_round", "_last", "_released")

    def __init__(self) -> None:
        """Start with the image of an empty ledger."""
        self._last: dict[bytes, tuple[LedgerRow, LedgerRow | None]] = {}
        """By key: the last row, and the ROUND row that held when it was appended."""
        self._current: LedgerRow | None = None
        self._current_round: Round = NO_ROUND
        self._released: LedgerRow | None = None

    def apply(self, row: LedgerRow) -> None:
        """Take the next row.

        Raises:
            LedgerCorrupt: its key cannot be read, or it is a ROUND that cannot.
        """
        position, key, value = row
        try:
            if key == _ROUND_KEY:
                if value is not None:
                    self._enter(row, lr.decode_round_value(value).stamp)
            elif value is None:
                lr.decode_key(key)
                self._last.pop(key, None)
            elif key in self._last or not isinstance(lr.decode_key(key), lr.UnknownKey):
                self._last[key] = row, self._current
        except lr.LedgerError as error:
            raise LedgerCorrupt(f"offset {position.offset}: {error}") from error

    def _enter(self, row: LedgerRow, stamp: Round) -> None:
        if stamp <= self._current_round:
            return
        self._current, self._current_round = row, stamp
        if round_number(stamp) == 0:  # `RoundGate.enter` releases it
            self._released = row

    def rows(self) -> Iterator[LedgerRow]:
        """Yield the image's rows, by offset.

        Raises:
            LedgerCorrupt: the last row of a key is no record that can be read.
        """
        found = {}
        for row in (self._current, self._released):
            if row is not None:
                found[row[0].offset] = row
        for row, its_round in self._last.values():
            found[row[0].offset] = row
            if _needs_its_round(row) and its_round is not None:
                found[its_round[0].offset] = its_round
        for offset in sorted(found):
            yield found[offset]


def _needs_its_round(row: LedgerRow) -> bool:
    """Return whether replay holds the stamp of this row against the round that held at its position (T2)."""
    position, key, value = row
    if key == _PAIRS_KEY:
        return False
    assert value is not None, "a tombstone is no last row"
    try:
        return lr.transaction_status(value).is_prepared
    except lr.LedgerError as error:
        raise LedgerCorrupt(f"offset {position.offset}: {error}") from error
