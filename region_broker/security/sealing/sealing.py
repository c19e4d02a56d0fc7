"""What a node has for sealed topics: its named keys, read again when their file changes, and the data keys drawn under them.

INV-SEA1  a file of keys that cannot be read (any more) changes nothing: the node goes on with the keys that it has, and says so. At a start it
          is refused, as it may be the wrong file
INV-SEA2  a source that does not answer costs the versions of its key that this node has not unlocked yet: what needs those is refused until it does,
          and it is asked again. What was unlocked stays for as long as it is in the file
INV-SEA3  nothing is written plain because a key is not here: `KeyNotHere` says what is refused, and why
Not here: the form of batches (`sealed_batch`), who is told of what (`partitions`).
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from idempotency.ports import Clock
from idempotency.record_batch import BatchHeader, Buffer
from region_broker.ports.disk import Disk
from region_broker.security.sealing.data_keys import DataKeys, KeyNotHere
from region_broker.security.sealing.key_ring import RingError, ring_bytes, ring_of, unlock
from region_broker.security.sealing.key_sources import KeySources
from region_broker.security.sealing.sealed_batch import LogPlace, opened, sealed

LOOK_MS: Final = 5_000
ASK_AGAIN_LOOKS: Final = 6
"""A source that failed is asked again at every sixth look."""
_log: Final = logging.getLogger(__name__)


class KeysFile(NamedTuple):
    """Where the named keys of a node are."""

    disk: Disk
    path: Path


class Sealing:
    """Of one node. Seals and opens from any thread."""

    def __init__(self, keys_file: KeysFile | None, monotonic_ms: Callable[[], int]) -> None:
        """Have no key before `read`; None: there are none."""
        self._file = keys_file
        self._seen = b""
        self._looks = 0
        self._said = ""
        self.keys = DataKeys(monotonic_ms)

    def read(self) -> None:
        """Read the keys, if a file is named. Blocks; raises `RingError`."""
        if self._file is None:
            return
        text = ring_bytes(*self._file)
        ring = ring_of(text, self._file.path)
        self.keys.use(unlock(KeySources(self._file.disk), ring, self.keys.named))
        self._seen = text
        self._say_missing()

    def look(self) -> None:
        """Read the keys again where their file has changed, or a source has failed. Blocks (INV-SEA1, INV-SEA2)."""
        if self._file is None:
            return
        self._looks += 1
        asks_again = self._looks % ASK_AGAIN_LOOKS == 0 and self._has_failed
        try:
            if asks_again or ring_bytes(*self._file) != self._seen:
                self.read()
        except RingError as error:
            self._seen = b""  # what was there before is read anew, too
            self._say(f"{error}. This node goes on with the keys that it has")

    @property
    def _has_failed(self) -> bool:
        return any(key.failed for key in self.keys.named.values())

    def _say_missing(self) -> None:
        lacking = [
            f"key {key.name!r}: {key.missing}" for key in self.keys.named.values() if key.failed
        ]
        self._say("; ".join(lacking))

    def _say(self, text: str) -> None:
        """Log what is wrong, once until it changes."""
        if text and text != self._said:
            _log.error("what is sealed under some keys can be neither written nor read: %s", text)
        self._said = text

    @property
    def problem(self) -> str | None:
        """What is wrong with the keys of this node, None if nothing is."""
        return self._said or None

    async def run(self, clock: Clock) -> None:
        """Look now and then, until cancelled."""
        while self._file is not None:
            await clock.sleep_ms(LOOK_MS)
            await asyncio.to_thread(self.look)

    def refusal_of(self, name: str) -> str | None:
        """Return why this node cannot seal under a named key, None if it can."""
        try:
            self.keys.sealing_key(name)
        except KeyNotHere as error:
            return str(error)
        return None

    def sealed(self, batch: Buffer, header: BatchHeader, place: LogPlace, name: str) -> bytearray:
        """Return a plain batch sealed under a named key; raises `KeyNotHere`."""
        return sealed(batch, header, place, self.keys.sealing_key(name))

    def opened(self, data: Buffer, place: LogPlace) -> bytearray:
        """Return batches with what is sealed opened; raises `KeyNotHere`, `SealBroken`."""
        return opened(data, place, self.keys.cipher)


def without_keys() -> Sealing:
    """Return what a node has that was given no keys."""
    return Sealing(None, lambda: 0)
