"""Sealed batches of one log, opened for who reads records: consumers, and lookups by time.

INV-OPS1  who reads records gets plain batches or an error, never what is sealed: `SealedRecords` where this node has not the key, `CorruptRange`
          where a batch is not what was sealed for this log
INV-OPS2  what is large is opened in a thread, as what is not in memory is read in there (`log.cold_reads`), and then read again; a reading
          that came behind, and finds more, gets what was opened
INV-OPS3  what was opened aside is given out once, and of all logs at most ASIDE_BYTES_MAX wait for that
Mirrors, followers, mending and tools read what is stored, and need no key. Not here: sealing (`record_rules`), keys (`security.sealing`).
"""

import logging
import threading
from collections import OrderedDict
from functools import partial
from typing import Final, TypeAlias

from idempotency.identity import TopicPartition
from idempotency.record_batch import Buffer, iter_headers
from region_broker.limits import FETCH_BYTES_MAX, OPENED_INLINE_BYTES_MAX
from region_broker.log.failures import CorruptRange, LogError, SealedRange, SealedRecords
from region_broker.security.sealing.data_keys import KeyNotHere
from region_broker.security.sealing.sealed_batch import LogPlace, SealBroken
from region_broker.security.sealing.sealing import Sealing

ASIDE_BYTES_MAX: Final = 2 * FETCH_BYTES_MAX
_log: Final = logging.getLogger(__name__)
_Opened: TypeAlias = bytearray | LogError
_Key: TypeAlias = tuple[LogPlace, int]


class OpenedAside:
    """What threads have opened, and nobody has taken yet; of all logs of a node."""

    def __init__(self, bytes_max: int = ASIDE_BYTES_MAX) -> None:
        """Hold nothing."""
        self._bytes_max = bytes_max
        self._held: OrderedDict[_Key, tuple[Buffer, _Opened]] = OrderedDict()
        self._held_bytes = 0
        self._changes = threading.Lock()

    def put(self, key: _Key, data: Buffer, opened: _Opened) -> None:
        """Keep what became of `data`; the oldest goes where it is too much."""
        with self._changes:
            self._drop(key)
            self._held[key] = (data, opened)
            self._held_bytes += len(data)
            while self._held_bytes > self._bytes_max and len(self._held) > 1:
                self._drop(next(iter(self._held)))

    def take(self, key: _Key) -> tuple[Buffer, _Opened] | None:
        """Return (what was stored, what it came to), and forget it."""
        with self._changes:
            return self._drop(key)

    def _drop(self, key: _Key) -> tuple[Buffer, _Opened] | None:
        found = self._held.pop(key, None)
        if found is not None:
            self._held_bytes -= len(found[0])
        return found


class OpeningSealed:
    """Of one log. `tp` stands in texts."""

    def __init__(
        self, tp: TopicPartition, place: LogPlace, sealing: Sealing, aside: OpenedAside
    ) -> None:
        """Open with the keys of `sealing`."""
        self._tp = tp
        self._place = place
        self._sealing = sealing
        self._aside = aside
        self._said = ""

    def opened(self, data: Buffer, next_offset: int, *, wait: bool) -> tuple[bytearray, int]:
        """Return whole batches opened, and where to go on behind them.

        Raises `SealedRecords`, `CorruptRange`, and `SealedRange` unless `wait`.
        """
        if wait or len(data) <= OPENED_INLINE_BYTES_MAX:
            return self._open(data), next_offset
        _, first = next(iter_headers(data))
        key = (self._place, first.base_offset)
        held = self._aside.take(key)
        if held is not None:
            stored, opened = held
            if len(stored) <= len(data) and memoryview(data)[: len(stored)] == stored:
                if isinstance(opened, LogError):
                    raise opened
                return opened, self._end_of(opened) if len(stored) < len(data) else next_offset
        raise SealedRange(partial(self._open_aside, key, bytes(data)), len(data))

    def _end_of(self, opened: bytearray) -> int:
        return max(header.next_offset for _, header in iter_headers(opened))

    def _open_aside(self, key: _Key, data: bytes) -> None:
        opened: _Opened
        try:
            opened = self._open(data)
        except LogError as error:
            opened = error
        self._aside.put(key, data, opened)

    def _open(self, data: Buffer) -> bytearray:
        try:
            return self._sealing.opened(data, self._place)
        except KeyNotHere as error:
            self._say(str(error))
            raise SealedRecords(f"{self._tp} is sealed: {error}") from error
        except SealBroken as error:
            self._say(str(error))
            _, first = next(iter_headers(data))
            raise CorruptRange(first.base_offset, f"{self._tp}: {error}") from error

    def _say(self, text: str) -> None:
        """Log why readers get nothing, once until it changes."""
        if text != self._said:
            self._said = text
            _log.error("readers of %s get an error: %s", self._tp, text)
