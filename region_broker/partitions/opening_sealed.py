"""Sealed batches of one log, opened for who reads records: consumers, and lookups by time.

INV-OPS1  who reads records gets plain batches or an error, never what is sealed: `SealedRecords` where this node has not the key, `CorruptRange`
          where a batch is not what was sealed for this log
INV-OPS2  what is large is opened in a thread, as what is not in memory is read in there (`log.cold_reads`), and then read again; a reading
          that came behind, and finds more, gets what was opened
INV-OPS3  what was opened aside is opened once for all readers that asked for it meanwhile, and given to each of them once: consumers of a topic
          that are many read the same at the same time. Of all logs at most ASIDE_BYTES_MAX wait for that; nothing of it outlives the keys that
          it was opened with (INV-DKY3)
INV-OPS4  in one step of the event loop a reader has at most OPENED_INLINE_BYTES_MAX opened on it, of all logs that it reads: they may be hundreds
          of small batches, of which each takes as long as 30 kB of a large one. Which ones these are is the same when it reads again
INV-OPS5  a reading of several logs that lacks one of them gives back what it took of the others, and takes it again when it reads again: else
          logs that are at hand in turns (one was opened for a reader that left, one was on the disk still) never are at the same time
Mirrors, followers, mending and tools read what is stored, and need no key. Not here: sealing (`record_rules`), keys (`security.sealing`).
"""

import logging
import threading
from collections import Counter, OrderedDict
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
Taken: TypeAlias = tuple[_Key, Buffer, _Opened, object]
"""What a reading took: of which log, what was stored, what it came to, and by which keys."""


class OpenedAside:
    """What threads have opened, and nobody has taken yet; of all logs of a node."""

    def __init__(self, bytes_max: int = ASIDE_BYTES_MAX) -> None:
        """Hold nothing."""
        self._bytes_max = bytes_max
        self._held: OrderedDict[_Key, tuple[Buffer, _Opened]] = OrderedDict()
        self._held_bytes = 0
        self._claims: Counter[_Key] = Counter()
        self._keys: object = None
        self._step_bytes = 0
        self._taken: list[Taken] | None = None
        self._changes = threading.Lock()

    def begin_step(self, taken: list[Taken] | None = None) -> None:
        """A reader begins to read, or goes on in another step of the event loop (INV-OPS4); what it takes is noted in `taken`."""
        self._step_bytes = 0
        self._taken = taken

    def end_step(self) -> None:
        """What is taken from now on is somebody else's."""
        self._taken = None

    def opens_now(self, size_bytes: int) -> bool:
        """Return whether so much is opened in this step."""
        if self._step_bytes + size_bytes > OPENED_INLINE_BYTES_MAX:
            return False
        self._step_bytes += size_bytes
        return True

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits to be taken."""
        return not self._held

    def claim(self, key: _Key, keys: object) -> None:
        """A reader is to come for what becomes of that by `keys`."""
        with self._changes:
            self._go_by(keys)
            self._claims[key] += 1

    def has(self, key: _Key, data: Buffer, keys: object) -> bool:
        """Return whether `data` was opened already, by `keys`, and waits for its readers."""
        with self._changes:
            found = self._held.get(key)
            return keys is self._keys and found is not None and found[0] == data

    def has_more(self, key: _Key, data: Buffer, keys: object) -> bool:
        """Return whether more than `data`, which it begins with, was opened by `keys`: for who asked for so much."""
        with self._changes:
            self._go_by(keys)
            found = self._held.get(key)
            return (
                found is not None
                and len(found[0]) > len(data)
                and memoryview(found[0])[: len(data)] == data
            )

    def put(self, key: _Key, data: Buffer, opened: _Opened, keys: object = None) -> None:
        """Keep what became of `data` by `keys`; the oldest goes where it is too much."""
        with self._changes:
            self._go_by(keys)
            claims = self._claims[key]
            self._drop(key)
            self._claims[key] = claims
            self._hold(key, data, opened)

    def take(self, key: _Key, keys: object = None) -> tuple[Buffer, _Opened] | None:
        """Return (what was stored, what it came to by `keys`), and forget it."""
        with self._changes:
            self._go_by(keys)
            if self._claims[key] > 1 and key in self._held:
                self._claims[key] -= 1
                return self._held[key]
            return self._drop(key)

    def note_taken(self, key: _Key, stored: Buffer, opened: _Opened, keys: object) -> None:
        """What was taken is of use to who reads now."""
        if self._taken is not None:
            self._taken.append((key, stored, opened, keys))

    def give_back(self, taken: list[Taken]) -> None:
        """Keep for who took it what it has no use for yet (INV-OPS5)."""
        with self._changes:
            for key, stored, opened, keys in taken:
                if keys is not self._keys:
                    continue
                self._claims[key] += 1
                if key not in self._held:
                    self._hold(key, stored, opened)

    def _hold(self, key: _Key, stored: Buffer, opened: _Opened) -> None:
        self._held[key] = (stored, opened)
        self._held_bytes += len(stored)
        while self._held_bytes > self._bytes_max and len(self._held) > 1:
            self._drop(next(iter(self._held)))

    def _go_by(self, keys: object) -> None:
        """Forget all that was opened by other keys."""
        if keys is not self._keys:
            self._keys = keys
            self._held.clear()
            self._claims.clear()
            self._held_bytes = 0

    def _drop(self, key: _Key) -> tuple[Buffer, _Opened] | None:
        self._claims.pop(key, None)
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
        if wait:
            return self._open(data), next_offset
        if not self._aside.is_empty:
            taken = self._taken(data, next_offset)
            if taken is not None:
                return taken
        if self._aside.opens_now(len(data)):
            return self._open(data), next_offset
        key = self._key(data)
        self._aside.claim(key, self._sealing.keys.named)
        raise SealedRange(partial(self._open_aside, key, bytes(data)), len(data))

    def _key(self, data: Buffer) -> _Key:
        _, first = next(iter_headers(data))
        return self._place, first.base_offset

    def _taken(self, data: Buffer, next_offset: int) -> tuple[bytearray, int] | None:
        """Return what `opened` does, of what was opened aside; None where that is not the beginning of `data`."""
        key, keys = self._key(data), self._sealing.keys.named
        held = None if self._aside.has_more(key, data, keys) else self._aside.take(key, keys)
        if held is None:
            return None
        stored, opened = held
        if len(stored) > len(data) or memoryview(data)[: len(stored)] != stored:
            return None
        self._aside.note_taken(key, stored, opened, keys)
        if isinstance(opened, LogError):
            raise opened
        return opened, self._end_of(opened) if len(stored) < len(data) else next_offset

    def _end_of(self, opened: bytearray) -> int:
        return max(header.next_offset for _, header in iter_headers(opened))

    def _open_aside(self, key: _Key, data: bytes) -> None:
        keys = self._sealing.keys.named
        if self._aside.has(key, data, keys):
            return
        opened: _Opened
        try:
            opened = self._open(data)
        except LogError as error:
            opened = error
        if keys is self._sealing.keys.named:  # else nobody may have it any more
            self._aside.put(key, data, opened, keys)

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
