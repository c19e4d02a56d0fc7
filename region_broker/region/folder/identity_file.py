"""The file `identity` of a data folder: whose it is, which history it holds, and the chain of its starts.

The file is the old or the new one after any crash, and what `identity` returns is on stable storage. A damaged file is
not mended by guessing: `IdentityDamaged`.

A frame of checked bytes around JSON, so that a person can read it. Written at each start, at birth, when the folder
joins a history, and when another region is met for the first time after its start: never for records that are taken.
Not here: what follows from it (`geo_replicator.folder_life`, `region.failover.steps.without_history`).
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from geo_replicator.folder_life import Birth, FolderIdentity, Shown
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload

_MAGIC: Final = b"TMID"
_VERSION: Final = 1
FILE_NAME: Final = "identity"


class IdentityDamaged(Exception):
    """The file cannot be trusted; the text names it and the way out."""


def read_identity(disk: Disk, folder: Path) -> FolderIdentity | None:
    """Return what `folder` says of itself, None where it says nothing; raises `IdentityDamaged`, OSError."""
    path = folder / FILE_NAME
    if not disk.exists(path):
        return None
    try:
        payload = unpack_frame(_MAGIC, _VERSION, disk.read_file(path))
        return msgspec.json.decode(payload, type=FolderIdentity)
    except (FrameError, msgspec.MsgspecError) as error:
        raise IdentityDamaged(
            f"{path} is damaged ({error}). It says whose this folder is and which history it holds, so it is not"
            " guessed: restore the folder, or start this region with an empty data_dir: it joins the"
            " region that acts (tidemark region failover --to a region that has history, if none acts)."
        ) from error


def write_identity(disk: Disk, folder: Path, identity: FolderIdentity) -> None:
    """Make `identity` what `folder` says of itself, durably; raises OSError."""
    payload = msgspec.json.format(msgspec.json.encode(identity))
    disk.write_file_atomic(folder / FILE_NAME, pack_frame(_MAGIC, _VERSION, payload))


class FolderRecord:
    """The identity of the folder that this process has opened; it changes here only."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        identity: FolderIdentity,
        *,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        """Keep `identity`, which is on disk; `offload` runs writes outside the event loop."""
        self._disk = disk
        self._folder = folder
        self._identity = identity
        self._offload = offload
        self._write_lock = asyncio.Lock()

    @property
    def identity(self) -> FolderIdentity:
        """Return what is durable."""
        return self._identity

    async def join(self, history: Birth) -> None:
        """Return once this folder is, durably, one that copies `history`; a second time changes nothing (INV-FX1)."""
        async with self._write_lock:
            known = self._identity.history
            if known is not None:
                assert known.birth_id == history.birth_id, (known, history)
                return
            await self._save(msgspec.structs.replace(self._identity, joined=history))

    async def note_whole(self) -> None:
        """Return once it is said, durably, that all parts of the folder were made (T36)."""
        async with self._write_lock:
            if not self._identity.whole:
                await self._save(msgspec.structs.replace(self._identity, whole=True))

    async def note_met(self, region: str, shown: Shown) -> None:
        """Return once the known start of another region is remembered durably (T36)."""
        async with self._write_lock:
            met = {**self._identity.met, region: shown.to_remember()}
            if met != self._identity.met:
                await self._save(msgspec.structs.replace(self._identity, met=met))

    async def _save(self, identity: FolderIdentity) -> None:
        await self._offload(lambda: write_identity(self._disk, self._folder, identity))
        self._identity = identity
