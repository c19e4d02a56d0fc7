"""The file of named keys (`encryption_keys_file`): their versions, each wrapped by the key's source, and where that is.

    [orders]
    source = { file = "/etc/tidemark/orders.key" }
    [[orders.versions]]
    id = "3f9c01b2a4d5e677"
    made = "2026-11-26T23:00:00Z"
    wrapped = "..."

What is in it is of no use without the sources. Each node has a copy; regions may have other sources for the same versions.

INV-SKR1  a version is destroyed by what it is wrapped in being gone from the file, for good: its line stays and says when
INV-SKR4  each version keeps its line, also once it is destroyed, and a destroyed one stays so: a file without that is cut off, or an older copy
INV-SKR3  a version that its source does not unlock costs nothing but itself: one that a key service has lost keeps none of the others away,
          unless a command fails for FAILURES_MAX newer ones
INV-SKR2  the file is replaced as a whole, and was read back as it was meant before that
Blocks: call it in a thread. Not here: data keys (`data_keys`), what nodes do with it (`sealing`).
"""

import base64
import binascii
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from region_broker.ports.disk import Disk
from region_broker.security.sealing.data_keys import KEY_BYTES, KeyVersion, NamedKey
from region_broker.security.sealing.key_sources import KeySource, KeySources, SourceFailed
from region_broker.security.sealing.sealed_batch import KEY_NAME_BYTES_MAX, VERSION_BYTES

KEYS_MAX: Final = 1_000
VERSIONS_MAX: Final = 1_000
FAILURES_MAX: Final = 3
"""So many versions of a key is a command asked for in vain at a time: one that does not answer takes its time with each."""
_FILE_BYTES_MAX: Final = 16 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class RingError(Exception):
    """The file of keys cannot be used, or not so; the text says why, and what to do."""


class WrappedVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version. `wrapped`: base64; "" once it is destroyed, and `destroyed` says when."""

    id: str
    made: str
    wrapped: str = ""
    destroyed: str = ""

    def __post_init__(self) -> None:
        """Refuse what is none."""
        if not re.fullmatch(rf"[0-9a-f]{{{2 * VERSION_BYTES}}}", self.id):
            raise ValueError(f"id is {2 * VERSION_BYTES} hexadecimal digits")
        if bool(self.wrapped) == bool(self.destroyed):
            raise ValueError("a version is wrapped, or destroyed")


class WrappedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named key, the newest version last."""

    source: KeySource
    versions: tuple[WrappedVersion, ...]


Ring = Mapping[str, WrappedKey]


def name_problem(name: str) -> str | None:
    """Return why a key may not be called so, None if it may."""
    if len(name) <= KEY_NAME_BYTES_MAX and _NAME.fullmatch(name):
        return None
    return f"a key's name is 1 to {KEY_NAME_BYTES_MAX} of a-z, A-Z, 0-9, '_' and '-'"


def read_ring(disk: Disk, path: Path) -> Ring:
    """Return what is in the file; raises `RingError`."""
    return ring_of(ring_bytes(disk, path), path)


def ring_bytes(disk: Disk, path: Path) -> bytes:
    """Return the content of the file; raises `RingError`."""
    try:
        return disk.read_file(path)
    except OSError as error:
        raise RingError(f"the file of keys {path} cannot be read: {error.strerror}") from error


def ring_of(text: bytes, path: Path) -> Ring:
    """Return what a file of that content holds; raises `RingError`."""
    if len(text) > _FILE_BYTES_MAX:
        raise RingError(f"the file of keys {path} has more than {_FILE_BYTES_MAX} bytes")
    try:
        ring = msgspec.convert(tomllib.loads(text.decode("utf-8-sig")), dict[str, WrappedKey])
    except (ValueError, msgspec.ValidationError) as error:
        raise RingError(f"the file of keys {path} is not right: {error}") from error
    for name, key in ring.items():
        problem = name_problem(name)
        ids = [each.id for each in key.versions]
        if problem is None and len(set(ids)) < len(ids):
            problem = "two of its versions have one id"
        if problem is None and len(ids) > VERSIONS_MAX:
            problem = f"it has more than {VERSIONS_MAX} versions"
        if problem is not None:
            raise RingError(f"the file of keys {path}: {name!r}: {problem}")
    if len(ring) > KEYS_MAX:
        raise RingError(f"the file of keys {path} has more than {KEYS_MAX} keys")
    return ring


def step_back(former: Ring, found: Ring) -> str | None:
    """Return what `found` has not any more, or again, that no command takes away, or brings back, once it was there; None if nothing.

    A key may go as a whole: its file is the operator's. What comes back under its name is what there was, or newer.
    """
    if former and not found:
        return "it holds no key any more"
    for name, key in former.items():
        if name not in found:
            continue
        now = {each.id: each for each in found[name].versions}
        for each in key.versions:
            if each.id not in now:
                return f"version {each.id} of key {name!r} is not in it any more"
            if each.destroyed and not now[each.id].destroyed:
                return f"version {each.id} of key {name!r} was destroyed, and is in it again"
    return None


def write_ring(replace: Callable[[Path, bytes], None], path: Path, ring: Ring) -> None:
    """Replace the file (INV-SKR2) by `replace`; raises `RingError`, OSError."""
    text = _text_of(ring).encode("utf-8", "surrogatepass")  # reading it back refuses what is none
    if ring_of(text, path) != dict(ring):
        raise RingError(f"what would be written to {path} does not read back as it is meant")
    replace(path, text)


def _text_of(ring: Ring) -> str:
    lines = ["# Named keys of Tidemark, wrapped by their sources: `tidemark key` writes this file."]
    for name, key in sorted(ring.items()):
        source = msgspec.to_builtins(key.source)
        told = ", ".join(f"{part} = {_toml(value)}" for part, value in source.items())
        lines += ["", f"[{name}]", f"source = {{ {told} }}"]
        if not key.versions:
            lines.append("versions = []")
        for each in key.versions:
            lines.append(f"[[{name}.versions]]")
            lines += [f"{part} = {_toml(v)}" for part, v in msgspec.to_builtins(each).items()]
    return "\n".join(lines) + "\n"


def _toml(value: str | tuple[str, ...] | list[str]) -> str:
    """Return a text, or a list of texts: TOML's basic strings are JSON's, but for DEL, and for characters in halves (`\\ud83d\\udd11`)."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- what is done with keys --------------------------------------------------------------------------


def check_name(ring: Ring, name: str, *, is_new: bool) -> None:
    """Raise `RingError` where the ring has not the key of that name, or has it though it is to be new."""
    problem = name_problem(name)
    if problem is not None:
        raise RingError(f"{name!r}: {problem}")
    if name not in ring and not is_new:
        raise RingError(f"there is no key {name!r}; `tidemark key make` makes one")
    if name in ring and is_new:
        raise RingError(f"there is a key {name!r}; `tidemark key rotate` gives it a new version")


def with_version(
    sources: KeySources, ring: Ring, name: str, source: KeySource | None, now: str
) -> Ring:
    """Return the ring with a new version of a key, which is the newest from now on; `source`: for a new key.

    Raises `RingError`, `SourceFailed`.
    """
    check_name(ring, name, is_new=source is not None)
    there = ring.get(name)
    used = source if there is None else there.source
    versions = () if there is None else there.versions
    assert used is not None
    material = os.urandom(KEY_BYTES)
    wrapped = _proved(sources, used, material)
    fresh = WrappedVersion(
        id=os.urandom(VERSION_BYTES).hex(), made=now, wrapped=base64.b64encode(wrapped).decode()
    )
    return {**ring, name: WrappedKey(used, (*versions, fresh))}


def _proved(sources: KeySources, source: KeySource, material: bytes) -> bytes:
    """Return a key wrapped by a source that gives it back: what cannot be unlocked again is never taken into use."""
    wrapped = sources.locked(source, material)
    if sources.unlocked(source, [wrapped]) != [material]:
        raise SourceFailed(f"{source} does not give back what it wrapped")
    return wrapped


def rewrapped(sources: KeySources, ring: Ring, name: str, source: KeySource) -> Ring:
    """Return the ring with the versions of a key under another source: the batches stay as they are.

    Raises `RingError`, `SourceFailed`.
    """
    key = _key_of(ring, name)
    versions = []
    for each in key.versions:
        if each.wrapped:
            (material,) = sources.unlocked(key.source, [_bytes_of(name, each)])
            again = base64.b64encode(_proved(sources, source, material)).decode()
            each = msgspec.structs.replace(each, wrapped=again)  # noqa: PLW2901
        versions.append(each)
    return {**ring, name: WrappedKey(source, tuple(versions))}


def destroyed(ring: Ring, name: str, version: str | None, now: str) -> Ring:
    """Return the ring with one version of a key, or all, destroyed (INV-SKR1); the newest goes only with all others.

    Raises `RingError`.
    """
    key = _key_of(ring, name)
    alive = [each.id for each in key.versions if each.wrapped]
    if version is not None and version not in alive:
        raise RingError(f"key {name!r} has no version {version} that is not destroyed")
    if version is not None and version == alive[-1] and len(alive) > 1:
        raise RingError(
            f"version {version} of key {name!r} seals what is written now: rotate first, then destroy it"
        )
    gone = set(alive) if version is None else {version}
    versions = tuple(
        WrappedVersion(id=each.id, made=each.made, destroyed=now) if each.id in gone else each
        for each in key.versions
    )
    return {**ring, name: WrappedKey(key.source, versions)}


def _key_of(ring: Ring, name: str) -> WrappedKey:
    if name not in ring:
        raise RingError(f"there is no key {name!r}, only {', '.join(sorted(ring)) or 'none'}")
    return ring[name]


def _bytes_of(name: str, version: WrappedVersion) -> bytes:
    try:
        return base64.b64decode(version.wrapped, validate=True)
    except (binascii.Error, ValueError):
        raise SourceFailed(f"version {version.id} of key {name!r} is no base64") from None


def unlock(
    sources: KeySources, ring: Ring, held: Mapping[str, NamedKey] | None = None
) -> dict[str, NamedKey]:
    """Return the keys of a ring as far as their sources give them; of the others, why not.

    For versions that are `held` already no source is asked (INV-SEA2).
    """
    return {
        name: _unlocked(sources, name, key, (held or {}).get(name)) for name, key in ring.items()
    }


def _unlocked(sources: KeySources, name: str, key: WrappedKey, held: NamedKey | None) -> NamedKey:
    alive = [each for each in key.versions if each.wrapped]
    if not alive:
        return NamedKey(name, (), "all of its versions were destroyed")
    known = {each.version.hex(): each for each in (held.versions if held else ())}
    failures: list[str] = []
    for each in reversed(alive):  # what seals now comes first
        if each.id in known or (key.source.unwrap and len(failures) >= FAILURES_MAX):
            continue
        try:
            (material,) = sources.unlocked(key.source, [_bytes_of(name, each)])
        except SourceFailed as error:
            failures.append(f"version {each.id}: {error}")
        else:
            known[each.id] = KeyVersion(bytes.fromhex(each.id), material)
    versions = tuple(known[each.id] for each in alive if each.id in known)
    newest = alive[-1].id
    return NamedKey(
        name,
        versions,
        "; ".join(failures),
        failed=bool(failures),
        waits_for="" if newest in known else newest,
    )
