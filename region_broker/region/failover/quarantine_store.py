"""Quarantine on disk: cut-off tails verbatim, their provenance, and the statements and losses beside them.

INV-QS1  a tail is complete and durable before its provenance is there; a tail without provenance is not
         quarantined yet, and is written again
INV-QS2  a file that is there is never changed: moving a tail again finds it, or one that holds the same bytes
INV-QS3  every read checks the CRC that the provenance promises
INV-QS4  what is damaged here costs itself only: a tail beside it is kept under a name of its own, and nobody's start or takeover
         waits. That is also what the disk does not read, and what people put here, who are told to move files away
INV-QS5  a copy of another node's tail is kept as one of this node's own is (INV-QS1): whole, as its provenance says, and durable, or
         nothing of it is left
INV-QS6  at most one move at a time writes into the folder of a log; syncs and names are made in threads, and one that was begun ends before
         its move does, also before one that is cancelled: its repetition finds all of it, or nothing that still changes
INV-QS7  of a tail that could not be moved nothing is left, nor, once another is moved in there, of one whose process was killed: the disk may have
         room for one of several that are moved at once, and a log that is cut gives back what its tail takes

Folder: ``<root>/<domain>/<topic id>-<partition>/<lineage epoch>-<first>-<last>[-<edition>].{batches,json}``,
``<root>/<domain>/statements/<lineage epoch>.json``.
Not here: which tails to move (`geo_replicator.quarantine.plan_cut`), what was lost (`geo_replicator.loss`).
"""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from geo_replicator.loss import LossStatement
from geo_replicator.quarantine import (
    CopyDamaged,
    CutCause,
    Provenance,
    ProvenanceUnreadable,
    QuarantineKey,
    TailIdentity,
    decode_provenance,
    encode_provenance,
)
from idempotency.identity import RegionEpoch
from idempotency.record_batch import BatchError, Buffer, iter_headers
from region_broker.ports.disk import Disk, DiskFile
from region_broker.ports.offload import Offload
from region_broker.ports.unbroken import to_its_end

_log: Final = logging.getLogger("tidemark.failover")
CHUNK_BYTES: Final = 1024 * 1024
_STATEMENTS: Final = "statements"
_BATCHES: Final = ".batches"
_PROVENANCE: Final = ".json"
_PARTIAL: Final = ".partial"
_COPIED: Final = ".copied.partial"

ReadBatches = Callable[[int], bytes | bytearray]
"""Whole verbatim batches from an offset on, empty at the end of the tail."""

_DOMAIN_FOLDER: Final = re.compile(r"[\w.-]+")  # not lost+found, where this is a file system
_LOG_FOLDER: Final = re.compile(r"[0-9a-f]{32}-\d+")


class QuarantineDamaged(Exception):
    """A quarantined tail is not what its provenance says, or a tail could not be read whole."""


class QuarantineStore:
    """The quarantine of one region."""

    def __init__(self, disk: Disk, root: Path, *, offload: Offload = asyncio.to_thread) -> None:
        """Keep everything under `root`; `offload` runs syncs outside the event loop."""
        self._disk = disk
        self._root = root
        self._offload = offload
        self.diverged_records = 0
        """Offsets put aside since this node's start because the region that acts does not hold them, and nobody gave them up
        (T23); `log_surgery.DivergedLogs` counts."""
        self._kept: dict[TailIdentity, Provenance] = {}
        self._has_looked = False
        self._moves: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held by whoever gives names in a folder (INV-QS6)."""

    async def move_in(self, provenance: Provenance, read: ReadBatches) -> Provenance:
        """Store the tail that `read` yields, durably, and return its provenance, with counts and CRC.

        `provenance` names the tail; `edition`, `byte_count`, `batch_count` and `crc32c` are filled in here. The log
        is not touched: truncate it afterwards (INV-Q2). Raises `QuarantineDamaged`, OSError.
        """
        folder = self._folder(provenance.key)
        async with self._moves[folder]:
            for known in self._readable_in(folder):
                if await self._holds(known, provenance, read):
                    # Its names may be of a life that was killed.
                    await self._in_thread(partial(self._disk.fsync_dir, folder))
                    return known
            await self._in_thread(partial(self._disk.make_dirs, folder))
            self._remove_unfinished(folder)
            path = folder / f"{_stem(provenance)}{_PARTIAL}"
            file = self._disk.open(path, create=True)
            try:
                complete = await _copy(file, provenance, read)
                return await self._finish(file, path, complete)
            finally:
                file.close()
                if self._disk.exists(path):  # INV-QS7
                    self._disk.remove(path)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            await self._offload(work)

        await to_its_end(run())

    async def _finish(self, file: DiskFile, path: Path, tail: Provenance) -> Provenance:
        """Make a whole file durable, and name it, all in one piece of work that ends before this does (INV-QS6)."""
        named: list[Provenance] = []

        def finish() -> None:
            file.fdatasync()
            named.append(self._name(path, tail))

        try:
            await self._in_thread(finish)
        finally:
            self._kept.update((kept.identity, kept) for kept in named)
            if not named:
                self._remove_unnamed(path.parent)
        return named[0]

    def _remove_unfinished(self, folder: Path) -> None:
        """Remove what a life that ended has left of tails on their way here; copies of other nodes' are written beside this (INV-QS7)."""
        for name in self._names(folder):
            if name.endswith(_PARTIAL) and not name.endswith(_COPIED):
                self._disk.remove(folder / name)
        self._remove_unnamed(folder)

    def _remove_unnamed(self, folder: Path) -> None:
        """Remove tails that have no provenance: their turn in this folder is over, so none is about to come (INV-QS1, INV-QS7)."""
        names = {*self._names(folder)}
        for name in names:
            stem = name.removesuffix(_BATCHES)
            if stem != name and f"{stem}{_PROVENANCE}" not in names:
                self._disk.remove(folder / name)

    def _name(self, path: Path, tail: Provenance) -> Provenance:
        """Give a durable file the name of its tail, then its provenance (INV-QS1); beside what has that name (INV-Q4)."""
        folder = self._folder(tail.key)
        while self._disk.exists(folder / f"{_stem(tail)}{_PROVENANCE}"):
            tail = msgspec.structs.replace(tail, edition=tail.edition + 1)
        stem = _stem(tail)
        self._disk.rename(path, folder / f"{stem}{_BATCHES}")
        self._disk.fsync_dir(folder)
        self._disk.write_file_atomic(folder / f"{stem}{_PROVENANCE}", encode_provenance(tail))
        return tail

    async def _holds(self, known: Provenance, wanted: Provenance, read: ReadBatches) -> bool:
        """Return whether the tail `known` holds, byte for byte, what `read` yields for `wanted` (INV-Q4).

        1. A tail is cut off. 2. The log grows again, with other records. 3. It is cut again, at the same offsets and
        under the same epoch: what was kept before is another tail.
        """
        if known.cause is not wanted.cause or not known.key.covers(wanted.key):
            return False
        try:
            return await _same_bytes(self.chunks(known), wanted, read)
        except (QuarantineDamaged, OSError) as error:
            _log.warning(
                "what is kept of a tail is not readable, so it is kept once more: %s", error
            )
            return False

    def tails(self) -> list[Provenance]:
        """Return the provenance of every quarantined tail, by path; raises `QuarantineDamaged`, OSError."""
        return [tail for folder in self._log_folders() for tail in self._in(folder)]

    def readable_tails(self, unreadable: list[str]) -> list[Provenance]:
        """Return the same, those of a damaged provenance aside, of which the reasons are added to `unreadable` (INV-QS4). OSError."""
        return [
            tail for folder in self._log_folders() for tail in self._readable_in(folder, unreadable)
        ]

    def _log_folders(self) -> list[Path]:
        return [
            self._root / domain / log
            for domain in filter(_DOMAIN_FOLDER.fullmatch, self._names(self._root))
            for log in filter(_LOG_FOLDER.fullmatch, self._names(self._root / domain))
        ]

    # -- copies, between the nodes of a region -----------------------------------------------------

    async def kept(self) -> Mapping[TailIdentity, Provenance]:
        """Return the tails that are here, those of a damaged provenance aside; the disk is read once. OSError."""
        if not self._has_looked:
            for folder in self._log_folders():
                await self._look_into(folder)
            self._has_looked = True
        return self._kept

    async def _look_into(self, folder: Path) -> None:
        if tails := self._readable_in(folder):
            # Their names may be of a life that was killed (INV-DK6).
            await self._offload(partial(self._disk.fsync_dir, folder))
        for tail in tails:
            self._kept.setdefault(tail.identity, tail)

    async def has(self, tail: Provenance) -> bool:
        """Return whether the tail is here, by itself or within a longer one. OSError."""
        kept = await self.kept()
        if tail.identity in kept:
            return True
        for known in list(kept.values()):
            is_longer = known.cause is tail.cause and known.key.covers(tail.key)
            if is_longer and await self._is_within(tail, known):
                return True
        return False

    async def _is_within(self, tail: Provenance, known: Provenance) -> bool:
        byte_count, crc = 0, 0
        try:
            for chunk in self.chunks(known):
                for start, header in iter_headers(chunk):
                    if tail.first_offset <= header.base_offset <= tail.last_offset:
                        crc = crc32c(memoryview(chunk)[start : start + header.size_bytes], crc)
                        byte_count += header.size_bytes
                await asyncio.sleep(0)
        except (QuarantineDamaged, OSError) as error:
            _log.warning("what is kept of a tail is not readable, so another copy is looked for: %s", error)  # fmt: skip
            return False
        return (byte_count, crc) == (tail.byte_count, tail.crc32c)

    async def piece(self, identity: TailIdentity, from_byte: int, size_bytes: int) -> bytes | None:
        """Return a piece of a tail as it lies there, None where it is not here (any more). OSError."""
        known = (await self.kept()).get(identity)
        if known is None:
            return None
        try:
            file = self._disk.open(self._batches_of(known))
        except FileNotFoundError:  # an operator took it away
            self._kept.pop(identity, None)
            return None
        try:
            return file.pread(size_bytes, from_byte)
        finally:
            file.close()

    async def keep_copy(self, tail: Provenance, pieces: AsyncIterator[bytes]) -> None:
        """Store another node's tail durably, as it is (INV-QS5).

        Raises `CopyDamaged` where the pieces are not what its provenance says, OSError, and what `pieces` raises.
        """
        folder = self._folder(tail.key)
        await self._in_thread(partial(self._disk.make_dirs, folder))
        path = folder / f"{_stem(tail)}{_COPIED}"
        if self._disk.exists(path):
            self._disk.remove(path)
        file = self._disk.open(path, create=True)
        try:
            byte_count, crc = 0, 0
            async for piece in pieces:
                byte_count += file.pwrite(byte_count, piece)
                crc = crc32c(piece, crc)
            if (byte_count, crc) != (tail.byte_count, tail.crc32c):
                raise CopyDamaged(
                    f"the copy of {tail.topic}-{tail.partition} from {tail.first_offset} to {tail.last_offset} is not what its"
                    f" provenance says: {byte_count} bytes, CRC-32C {crc:#010x}"
                )
            async with self._moves[folder]:
                await self._finish(file, path, tail)
        finally:
            file.close()
            if self._disk.exists(path):  # it is not whole, or got no name
                self._disk.remove(path)

    def chunks(self, provenance: Provenance) -> Iterator[bytes]:
        """Yield the tail in pieces of whole batches, in order; raises `QuarantineDamaged` (INV-QS3)."""
        path = self._batches_of(provenance)
        file = self._disk.open(path)
        try:
            yield from _checked_chunks(file, provenance, path)
        finally:
            file.close()

    def keep_statement(self, statement: LossStatement) -> None:
        """Store the statement of its region epoch durably; one that is there stays (INV-QS2), unless it is of another base.

        1. A node that leads a takeover states the loss, and dies before the base is chosen. 2. Another one finds more, and acts from
        there. 3. The first one is back: what it has stated was never lost.
        """
        path = self._statement_path(statement.domain, statement.region_epoch)
        folder = path.parent
        if self._disk.exists(path) and not self._is_of_another_base(statement):
            self._disk.fsync_dir(folder)  # its name may be of a life that was killed
            return
        self._disk.make_dirs(folder)
        data = msgspec.json.format(msgspec.json.encode(statement), indent=2) + b"\n"
        self._disk.write_file_atomic(path, data)

    def _is_of_another_base(self, statement: LossStatement) -> bool:
        try:
            known = self.statement(statement.domain, statement.region_epoch)
        except QuarantineDamaged:
            return False
        return known is not None and known.base != statement.base

    def statement(self, domain: str, region_epoch: RegionEpoch) -> LossStatement | None:
        """Return the statement that was made before acting under `region_epoch`, if it is here; raises `QuarantineDamaged`."""
        try:
            data = self.statement_bytes(domain, region_epoch)
            return None if data is None else msgspec.json.decode(data, type=LossStatement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
            raise QuarantineDamaged(
                f"{self._statement_path(domain, region_epoch)} is not a loss statement that can be read: {error}. Give that"
                " file back from a copy, or move it away: the losses of that takeover are listed then, and held against no statement"
            ) from error

    def statement_bytes(self, domain: str, region_epoch: RegionEpoch) -> bytes | None:
        """Return that statement's file as it is, None where there is none; OSError."""
        path = self._statement_path(domain, region_epoch)
        return self._disk.read_file(path) if self._disk.exists(path) else None

    def _statement_path(self, domain: str, region_epoch: RegionEpoch) -> Path:
        return self._root / domain / _STATEMENTS / f"{region_epoch}{_PROVENANCE}"

    def cause_of(self, tail: Provenance) -> CutCause:
        """Return why it was cut: what an accepted loss names was lost by that word; raises `QuarantineDamaged` (INV-LO6)."""
        if tail.cause is CutCause.LINEAGE:
            return tail.cause
        statement = self.statement(tail.domain, tail.lineage_epoch)
        if statement and statement.names_diverged(tail.region, tail.key.log, tail.first_offset):
            return CutCause.LINEAGE
        return tail.cause

    def _in(self, folder: Path) -> list[Provenance]:
        return [self._read(folder / name) for name in self._provenances(folder)]

    def _readable_in(self, folder: Path, unreadable: list[str] | None = None) -> list[Provenance]:
        found = []
        for name in self._provenances(folder):
            try:
                found.append(self._read(folder / name))
            except QuarantineDamaged as error:
                _log.error("a tail in quarantine is damaged, and passed by: %s", error)
                if unreadable is not None:
                    unreadable.append(f"a tail in quarantine: {error}")
        return found

    def _provenances(self, folder: Path) -> list[str]:
        return [name for name in self._names(folder) if name.endswith(_PROVENANCE)]

    def _read(self, path: Path) -> Provenance:
        try:
            return decode_provenance(self._disk.read_file(path))
        except (ProvenanceUnreadable, OSError) as error:
            raise QuarantineDamaged(
                f"{path}: {error}. Give that file back from a copy, or move it away with the .batches beside it, which"
                " hold the records: the other tails are listed then"
            ) from error

    def _names(self, folder: Path) -> list[str]:
        try:
            return self._disk.list_dir(folder) if self._disk.exists(folder) else []
        except NotADirectoryError:  # a file that people have put here: there is nothing in it
            return []

    def _batches_of(self, tail: Provenance) -> Path:
        return self._folder(tail.key) / f"{_stem(tail)}{_BATCHES}"

    def _folder(self, key: QuarantineKey) -> Path:
        return self._root / key.domain / f"{key.topic_id.hex}-{key.partition}"


def _stem(named: Provenance) -> str:
    edition = f"-{named.edition}" if named.edition else ""
    return f"{named.lineage_epoch}-{named.first_offset:020d}-{named.last_offset:020d}{edition}"


async def _same_bytes(kept: Iterator[bytes], wanted: Provenance, read: ReadBatches) -> bool:
    """Return whether `kept`, whole batches in order, holds what `read` yields from the first to the last offset."""
    offset, data, compared = wanted.first_offset, b"", 0
    for chunk in kept:
        for start, header in iter_headers(chunk):
            if header.base_offset < wanted.first_offset:
                continue
            if compared == len(data):
                if offset > wanted.last_offset:
                    return True
                data, compared = bytes(read(offset)), 0
                _, last, count = _extent(data)
                offset = last + 1 if count else offset
            size = header.size_bytes
            if chunk[start : start + size] != data[compared : compared + size]:
                return False
            compared += size
        await asyncio.sleep(0)
    return offset > wanted.last_offset and compared == len(data)


async def _copy(file: DiskFile, provenance: Provenance, read: ReadBatches) -> Provenance:
    offset, byte_count, batch_count, crc = provenance.first_offset, 0, 0, 0
    while offset <= provenance.last_offset:
        data = read(offset)
        first, last, count = _extent(data)
        # A hole is what cleaning left at the primary before this region copied it; the log itself refuses any other.
        if count == 0 or first < offset:
            raise QuarantineDamaged(
                f"{provenance.topic}-{provenance.partition}: no whole batch starts at or behind offset {offset},"
                f" though its tail runs to {provenance.last_offset}; nothing was cut off"
            )
        file.pwrite(byte_count, data)
        crc = crc32c(data, crc)
        byte_count += len(data)
        batch_count += count
        offset = last + 1
        await asyncio.sleep(0)
    return msgspec.structs.replace(
        provenance,
        last_offset=offset - 1,
        byte_count=byte_count,
        batch_count=batch_count,
        crc32c=crc,
    )


def _extent(data: Buffer) -> tuple[int, int, int]:
    """Return (first offset, last offset, batch count) of whole batches; count 0 when there is none."""
    first, last, count = -1, -1, 0
    for _, header in iter_headers(data):
        first = header.base_offset if count == 0 else first
        last = header.last_offset
        count += 1
    return first, last, count


def _checked_chunks(file: DiskFile, provenance: Provenance, path: Path) -> Iterator[bytes]:
    position, crc, carried = 0, 0, b""
    while position < provenance.byte_count:
        data = file.pread(min(CHUNK_BYTES, provenance.byte_count - position), position)
        if not data:
            break
        position += len(data)
        crc = crc32c(data, crc)
        carried += data
        whole = _whole_bytes(carried, path)
        if whole:
            yield carried[:whole]
            carried = carried[whole:]
    if crc != provenance.crc32c or carried:
        raise QuarantineDamaged(
            f"{path} is not what its provenance says: {provenance.byte_count} bytes with CRC-32C"
            f" {provenance.crc32c:#010x} expected; the disk changed it"
        )


def _whole_bytes(data: bytes, path: Path) -> int:
    end = 0
    try:
        for position, header in iter_headers(data):
            end = position + header.size_bytes
    except BatchError as error:
        raise QuarantineDamaged(f"{path}: {error}") from error
    return end
