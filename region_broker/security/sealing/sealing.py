"""What a node has for sealed topics: its named keys, read again when their file changes, and the data keys drawn under them.

INV-SEA1  a file of keys that cannot be read (any more) changes nothing: the node goes on with the keys that it has, and says so. At a start it
          is refused, as it may be the wrong file
INV-SEA2  a source that does not answer costs the versions of its key that this node has not unlocked yet: what needs those is refused until it does,
          and it is asked again. What was unlocked stays for as long as it is in the file
INV-SEA3  nothing is written plain because a key is not here: `KeyNotHere` says what is refused, and why
INV-SEA4  who asked for it is told which versions of each key count here, at once, and again when that has changed: also which are forgotten
INV-SEA5  a file that was read anew and is cut off, or an older copy (INV-SKR4), changes nothing, too: 1. A key is rotated, its former version is to be
          destroyed. 2. A copy of the file that lacks the new version comes in place, whole lines of it or from before. 3. What is acknowledged then
          would be sealed by the former version, and destroyed with it
          So it is, too, for a key that was gone as a whole meanwhile: a file that was cut off between two keys may be restored from an older copy
INV-SEA6  nothing is sealed by a version that is not the newest of the file that was taken up, also where that one cannot be unlocked here (yet): whoever
          rotates may destroy the former version, and what was acknowledged by it would go, too. It opens what it sealed
Not here: the form of batches (`sealed_batch`), who is told of what (`partitions`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from idempotency.ports import Clock
from idempotency.record_batch import BatchHeader, Buffer
from region_broker.ports.disk import Disk
from region_broker.security.sealing.data_keys import DataKeys, KeyNotHere, NamedKey
from region_broker.security.sealing.key_ring import (
    Ring,
    RingError,
    ring_bytes,
    ring_of,
    step_back,
    unlock,
)
from region_broker.security.sealing.key_sources import KeySources
from region_broker.security.sealing.sealed_batch import LogPlace, opened, sealed

LOOK_MS: Final = 5_000
ASK_AGAIN_LOOKS: Final = 6
"""A source that failed is asked again at every sixth look."""
_STEP_BACK: Final = (
    "the file of keys {path} is cut off, or an older copy: {problem}. Put the newest copy in place, whole (a version is taken away by"
    " tidemark key destroy), or restart the node if this one is right"
)
_log: Final = logging.getLogger("tidemark.keys")


class KeysFile(NamedTuple):
    """Where the named keys of a node are."""

    disk: Disk
    path: Path


class CountingKey(NamedTuple):
    """Which versions of a named key count at a node, the newest last, and which it has forgotten since it was told last."""

    name: str
    versions: tuple[str, ...]
    forgotten: tuple[str, ...]


_Versions: TypeAlias = Mapping[str, tuple[str, ...]]


def _versions(named: Mapping[str, NamedKey]) -> _Versions:
    """Return which versions of each key can be used, in hex, the newest last."""
    return {name: tuple(each.version.hex() for each in key.versions) for name, key in named.items()}


def _changes(before: _Versions, now: _Versions) -> list[CountingKey]:
    """Return what counts now of the keys of which something else counted before, by name."""
    changed = []
    for name in sorted({*now, *before}):
        had, has = before.get(name, ()), now.get(name, ())
        if has != had:
            changed.append(CountingKey(name, has, tuple(each for each in had if each not in has)))
    return changed


class Sealing:
    """Of one node. Seals and opens from any thread."""

    def __init__(self, keys_file: KeysFile | None, monotonic_ms: Callable[[], int]) -> None:
        """Have no key before `read`; None: there are none."""
        self._file = keys_file
        self._seen = b""
        self._ring: Ring = {}
        """What was read last of each key, of files that counted; also of keys that are gone."""
        self._looks = 0
        self._said = ""
        self._heard: Callable[[CountingKey], None] | None = None
        self._told: _Versions = {}
        self.keys = DataKeys(monotonic_ms)

    def read(self) -> None:
        """Read the keys, if a file is named. Blocks; raises `RingError`."""
        if self._file is None:
            return
        text = ring_bytes(*self._file)
        ring = ring_of(text, self._file.path)
        if problem := step_back(self._ring, ring):  # INV-SEA5
            raise RingError(_STEP_BACK.format(path=self._file.path, problem=problem))
        before, self._ring = self.keys.named, {**self._ring, **ring}
        self.keys.use(unlock(KeySources(self._file.disk), ring, before))
        has_changed, self._seen = text != self._seen, text
        if not self._tell_of_change(_versions(before)) and before and has_changed:
            self._tell_of_the_same()
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

    def tell(self, heard: Callable[[CountingKey], None]) -> None:
        """Tell which versions of each key count, now and when that has changed while `run` runs (INV-SEA4)."""
        self._heard = heard
        self._tell_heard()

    def _tell_heard(self) -> None:
        if self._heard is None:
            return
        now = _versions(self.keys.named)
        for key in _changes(self._told, now):
            self._heard(key)
        self._told = now

    def _tell_of_the_same(self) -> None:
        """Log that a file was taken up that changes no version: who has wrapped keys anew asks for that, and for what it does not prove."""
        assert self._file is not None, "it was read"
        path = self._file.path
        _log.info(
            "the file of keys %s was read anew, and the same versions count as before. Of those no source is asked before the next start:"
            " tidemark key list %s --check, as the user of this node, shows whether they can be used here then", path, path,
        )  # fmt: skip

    def _tell_of_change(self, before: _Versions) -> bool:
        """Log which versions count from now on, and which this node has forgotten: who destroys a key asks for that. Return whether any do."""
        now = _versions(self.keys.named)
        if not (changed := _changes(before, now)):
            return False
        counting = [
            f"{name} seals by {key.sealing.version.hex() if key.sealing else 'none'}, versions that it opens: {len(key.versions)}"
            for name, key in self.keys.named.items()
            if key.versions
        ]
        gone = [f"{each} of {key.name}" for key in changed for each in key.forgotten]
        assert self._file is not None, "it was read"
        _log.info(
            "the keys of %s count from now on: %s%s", self._file.path, "; ".join(counting) or "none",
            f". Forgotten here: {', '.join(gone)}" if gone else "",
        )  # fmt: skip
        return True

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
            self._tell_heard()

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
