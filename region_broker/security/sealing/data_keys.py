"""Data keys: what batches are sealed with, drawn by a process for itself, and found again by the form that they are wrapped in.

INV-DKY1  no nonce is used twice with a key. A data key is drawn by one process, with 256 bits of the machine's chance, and only that process
          ever seals with it; its nonces are a counter that begins at 0 and gives each number once, whatever thread asks, and chance behind
          it. A process that starts again has no counter, and draws another key; whoever copies a log (followers, mirrors, mending) copies
          what is sealed. A machine that goes on twice from one snapshot of its memory has one key and one counter twice, and other chance
INV-DKY2  a data key seals NONCES_MAX batches at most, and for KEY_AGE_MS: a new version of its named key is in use a day later everywhere,
          and at once where a node reads its keys again
INV-DKY3  whoever forgets a version of a named key forgets what it wrapped in the same step: destroyed is unreadable
Not here: named keys (`key_ring`), the form of a batch (`sealed_batch`).
"""

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from region_broker.security.sealing.sealed_batch import (
    NONCE_BYTES,
    Cipher,
    KeyRef,
    SealingKey,
    head_of,
)

KEY_BYTES: Final = 32
KEY_AGE_MS: Final = 24 * 3_600_000
NONCES_MAX: Final = 1 << 32
_COUNTER_BYTES: Final = 5
assert NONCES_MAX << 7 < 1 << 8 * _COUNTER_BYTES, "threads may take some beyond"
KNOWN_MAX: Final = 4_096
"""Data keys that are kept opened for readers: one for each day, node and named key, so these are years."""


class KeyNotHere(Exception):
    """A batch, or a topic, needs a named key that this node has not; the text says which, and what to do.

    Clients are told it: it has no path, address or command of a source; those are in the node's log (INV-SEA2).
    """


class KeyVersion(NamedTuple):
    """One version of a named key, unlocked. `material` wraps data keys, and is told nobody."""

    version: bytes
    material: bytes

    def __repr__(self) -> str:
        """Say which it is, and nothing of the key."""
        return f"KeyVersion({self.version.hex()})"


class NamedKey(NamedTuple):
    """A named key as a node has it: its versions, the newest one last; `missing`: why some are not here, or none; `failed`: whether that may pass.

    `waits_for`: the newest version of the file, in hex, where it is not unlocked here; "" where it is, or there is none (INV-SEA6).
    """

    name: str
    versions: tuple[KeyVersion, ...]
    missing: str = ""
    failed: bool = False
    waits_for: str = ""

    @property
    def sealing(self) -> KeyVersion | None:
        """The version that seals what is written now, None if nothing does: never one that is not the newest of the file (INV-SEA6)."""
        return self.versions[-1] if self.versions and not self.waits_for else None


class _Drawn(NamedTuple):
    """A data key of this process, and until when it seals."""

    key: SealingKey
    until_ms: int
    left: Callable[[], bool]


class DataKeys:
    """Of one node. May be asked from any thread."""

    def __init__(
        self, monotonic_ms: Callable[[], int], draw: Callable[[int], bytes] = os.urandom
    ) -> None:
        """Have no key; `draw` gives so many bytes of chance."""
        self._monotonic_ms = monotonic_ms
        self._draw = draw
        self._named: Mapping[str, NamedKey] = {}
        self._drawn: dict[str, _Drawn] = {}
        self._known: dict[KeyRef, Cipher] = {}
        self._changes = threading.Lock()

    @property
    def named(self) -> Mapping[str, NamedKey]:
        """The named keys that are there."""
        return self._named

    def use(self, named: Mapping[str, NamedKey]) -> None:
        """Have these named keys from now on, and no others; what they wrapped before is looked up again (INV-DKY3)."""
        with self._changes:
            self._named = dict(named)
            self._known = {}
            current = {name: key.sealing.version for name, key in named.items() if key.sealing}
            self._drawn = {
                name: drawn
                for name, drawn in self._drawn.items()
                if current.get(name) == drawn.key.ref.version
            }

    def sealing_key(self, name: str) -> SealingKey:
        """Return what seals under a named key now; raises `KeyNotHere`."""
        drawn = self._drawn.get(name)
        if drawn is not None and drawn.left() and self._monotonic_ms() < drawn.until_ms:
            return drawn.key
        with self._changes:
            return self._draw_for(name)  # two threads may draw one each: both are good

    def _draw_for(self, name: str) -> SealingKey:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- INV-LEAN3
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap  # noqa: PLC0415

        newest = self._sealing_of(name)
        material = self._draw(KEY_BYTES)
        ref = KeyRef(name, newest.version, aes_key_wrap(newest.material, material))
        numbers = itertools.count()
        last = [0]

        def nonce() -> bytes:
            last[0] = number = next(numbers)  # one step of the interpreter: no two threads get one
            return number.to_bytes(_COUNTER_BYTES, "big") + self._draw(NONCE_BYTES - _COUNTER_BYTES)

        key = SealingKey(ref, AESGCM(material), nonce, head_of(ref))
        until_ms = self._monotonic_ms() + KEY_AGE_MS
        self._drawn[name] = _Drawn(key, until_ms, lambda: last[0] < NONCES_MAX)
        return key

    def _sealing_of(self, name: str) -> KeyVersion:
        self._versions_of(name)
        key = self._named[name]
        if key.sealing is None:
            raise KeyNotHere(
                f"this node has not version {key.waits_for} of the key {name!r}, the newest one, which alone seals what is written:"
                f" {_told(key)} (`tidemark key list FILE`)"
            )
        return key.sealing

    def _versions_of(self, name: str) -> tuple[KeyVersion, ...]:
        key = self._named.get(name)
        if key is None or not key.versions:
            why = "it is none of its keys" if key is None else _told(key)
            raise KeyNotHere(
                f"this node has not the key {name!r}: {why}. Its keys are in the file that encryption_keys_file names"
                " (`tidemark key list FILE`)"
            )
        return key.versions

    def cipher(self, ref: KeyRef) -> Cipher:
        """Return what opens batches that were sealed by `ref`; raises `KeyNotHere`."""
        found = self._known.get(ref)
        if found is not None:
            return found
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- INV-LEAN3

        with self._changes:
            cipher = AESGCM(self._unwrapped(ref))
            if len(self._known) >= KNOWN_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[ref] = cipher
            return cipher

    def _unwrapped(self, ref: KeyRef) -> bytes:
        from cryptography.hazmat.primitives.keywrap import (  # noqa: PLC0415 -- INV-LEAN3
            InvalidUnwrap,
            aes_key_unwrap,
        )

        for each in self._versions_of(ref.name):
            if each.version == ref.version:
                try:
                    return aes_key_unwrap(each.material, ref.wrapped)
                except InvalidUnwrap:
                    raise KeyNotHere(
                        f"version {ref.version.hex()} of the key {ref.name!r} that this node has is not the one that sealed the batch,"
                        " or the batch was changed"
                    ) from None
        why = _told(self._named[ref.name]) or "it was destroyed, or came later than this file"
        raise KeyNotHere(
            f"this node has not version {ref.version.hex()} of the key {ref.name!r}: {why} (`tidemark key list FILE`)"
        )


def _told(key: NamedKey) -> str:
    """Return why versions of a key are missing, as clients may hear it; "" where none is."""
    return (
        "its source does not give it, and the log of the node says why"
        if key.failed
        else key.missing
    )
