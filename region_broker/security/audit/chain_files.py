"""The chain of one node on disk: numbered files of lines, one behind the other, and what a start makes of the last one.

INV-ACF1  what `write` returned for is durable, all of it; where it raised, the chain is as before, or takes nothing more until the next
          start (`failed`): a sync that failed is not tried again (INV-DK3)
INV-ACF2  what a crash left behind the last whole record is copied aside (`torn-*.bin`) before it is cut off, and the next record says so:
          nothing is dropped silently
INV-ACF3  each file begins with a record that says whose chain it is, and a chain of another node is not written to
INV-ACF4  no file is ever removed here: who could fill the trail could else wash it out. Where the file that is written was moved away, the
          chain goes on in the next one: nothing is written to what has no name
INV-ACF6  a full disk keeps no node from starting: what a start has to write is written before the first record that finds room
INV-ACF5  one process at a time writes to a folder: two nodes with one identity, as a copy has it, would write over each other's records
Blocking: a start calls `open`, the recorder calls `write` in a thread, one at a time.
Not here: what the records are (`recorder`), whether a chain is sound (`verifying`).
"""

import errno
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from region_broker.ports.disk import Disk, DiskFile, Lock, sync_as_found
from region_broker.security.audit.chain import NO_HEAD, Head, NotALink, make_line, read_line
from region_broker.security.audit.events import Kind, Outcome

FILE_PREFIX: Final = "audit-"
FILE_SUFFIX: Final = ".jsonl"
LOCK_FILE: Final = "lock"
FORMAT: Final = 1
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAME: Final = re.compile(rf"{FILE_PREFIX}[0-9]{{8}}{re.escape(FILE_SUFFIX)}")
OPENED, CONTINUED, TORN = "chain-begun", "file-begun", "torn"
_FAILED: Final = (
    "the audit trail in {folder} cannot be written any more ({why}), and what is durable of its last records is known after a restart:"
    " mend the disk, and restart the node"
)


class AuditRefused(Exception):
    """The folder of the trail may not be used; the text says why and what to do."""


class Owner(msgspec.Struct, frozen=True):
    """Whose chain it is. `folder`: the incarnation of the data folder; it changes with that one, the others never."""

    cluster_id: str
    region: str
    node_id: int
    folder: str

    @property
    def node(self) -> str:
        """Return what records call the node."""
        return f"{self.region}/{self.node_id}"

    def fields(self) -> dict[str, Any]:
        """Return it as the first record of a file says it."""
        return {"format": FORMAT, **msgspec.structs.asdict(self)}


def file_name(number: int) -> str:
    """Return the name of a file of the chain."""
    return f"{FILE_PREFIX}{number:08d}{FILE_SUFFIX}"


def chain_names(names: Sequence[str]) -> list[str]:
    """Return those that are files of a chain, in their order; what else lies beside them, as copies, is none."""
    return sorted(name for name in names if _NAME.fullmatch(name))


class ChainFiles:
    """Use `open`, then `write`; `close` at the end."""

    def __init__(
        self, disk: Disk, folder: Path, owner: Owner, *, file_bytes_max: int, wall_ms: int
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._folder = folder
        self._owner = owner
        self._file_bytes_max = file_bytes_max
        self._wall_ms = wall_ms
        self._lock: Lock | None = None
        self._file: DiskFile | None = None
        self._notes: list[dict[str, Any]] = []
        self._number = 0
        self._size_bytes = 0
        self._full_bytes = 0
        self.head = NO_HEAD
        self.failed = ""
        """Why nothing is written any more, empty while it is."""

    @classmethod
    def open(
        cls, disk: Disk, folder: Path, owner: Owner, *, file_bytes_max: int, wall_ms: int
    ) -> Self:
        """Go on with the chain in `folder`, or begin one; raises `AuditRefused`, `OSError`."""
        disk.make_dirs(folder)
        chain = cls(disk, folder, owner, file_bytes_max=file_bytes_max, wall_ms=wall_ms)
        chain._keep_others_out()
        try:
            chain._begin()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                return chain  # INV-ACF6
            chain.close()
            raise
        return chain

    def _keep_others_out(self) -> None:
        try:
            self._lock = self._disk.lock(self._folder / LOCK_FILE)
        except BlockingIOError as error:
            raise AuditRefused(
                f"the audit trail in {self._folder} is written by another process: stop that one, or give this node an audit_dir of its own"
            ) from error

    def _begin(self) -> None:
        """Take the chain up, or begin one; where this raises it may be called again."""
        try:
            if names := chain_names(self._disk.list_dir(self._folder)):
                self._go_on(names)
            if self._file is None:
                self._begin_file(self._wall_ms, OPENED)
            if self._notes:
                self.write(self._notes, self._wall_ms)
        except BaseException:
            if self._file is not None:
                self._file.close()
                self._file = None
            raise
        self._notes = []

    @property
    def total_bytes(self) -> int:
        """Return what all files of the chain have."""
        return self._full_bytes + self._size_bytes

    def write(self, records: Sequence[Mapping[str, Any]], wall_ms: int) -> list[int]:
        """Make records durable behind the chain and return their sequence numbers; raises `OSError` (INV-ACF1)."""
        if self.failed:
            raise OSError(errno.EIO, self.failed)
        if self._file is None:
            self._begin()
        is_there = self._disk.exists(self._folder / file_name(self._number))
        if self._size_bytes >= self._file_bytes_max or not is_there:
            self._begin_file(wall_ms, CONTINUED)
        lines, head = [], self.head
        for fields in records:
            line, head = make_line(head, fields)
            lines.append(line)
        first = self.head.seq + 1
        self._append(b"".join(lines))
        self.head = head
        return list(range(first, head.seq + 1))

    def close(self) -> None:
        """Close the file; all that was written is durable."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.close()

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.pwrite(self._size_bytes, data)
        except OSError:
            self._cut_back()
            raise
        try:
            self._file.fdatasync()
        except OSError as error:
            self._fail(error)
            raise
        self._size_bytes += len(data)

    def _cut_back(self) -> None:
        """Let the file end where it did: on a full disk the next record may find room again."""
        assert self._file is not None
        try:
            self._file.truncate(self._size_bytes)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        why = error.strerror or str(error)
        self.failed = _FAILED.format(folder=self._folder, why=why)

    def _begin_file(self, wall_ms: int, operation: str) -> None:
        """Begin the next file with a record that says whose chain it is (INV-ACF3); raises `OSError`, and the old file goes on then."""
        number = self._number + 1
        path = self._folder / file_name(number)
        line, head = make_line(
            self.head, trail_fields(wall_ms, self._owner.node, operation, self._owner.fields())
        )
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)  # of an earlier try
            file.pwrite(0, line)
            file.fdatasync()
            self._disk.fsync_dir(self._folder)
        except OSError as error:
            file.close()
            self._give_up(path, error)
            raise
        if self._file is not None:
            self._file.close()
        self._full_bytes += self._size_bytes
        self._file, self._number, self._size_bytes = file, number, len(line)
        self.head = head

    def _give_up(self, path: Path, error: OSError) -> None:
        """Remove a file that was not begun: a start would else find its record behind those of the old one."""
        try:
            self._disk.remove(path)
            self._disk.fsync_dir(self._folder)
        except OSError:
            self._fail(error)

    # -- what a start finds ----------------------------------------------------------------------

    def _go_on(self, names: Sequence[str]) -> None:
        """Take the last file on, and note what a crash left in it: where this raises, another try finds nothing of that any more."""
        self._number = int(names[-1].removeprefix(FILE_PREFIX).removesuffix(FILE_SUFFIX))
        path = self._folder / names[-1]
        sync_as_found(self._disk, path)  # INV-DK6
        self._full_bytes = sum(self._disk.file_size(self._folder / name) for name in names[:-1])
        data = self._disk.read_file(path)
        end, head, owner = _whole_part(data)
        if (
            owner is None and len(names) > 1
        ):  # the file was begun, and its first record is not whole
            head = self._end_of(names[-2])
        self._check_owner(owner)
        self.head, self._size_bytes = head, end
        is_torn = end < len(data)
        if is_torn and (note := self._set_aside(path, data[end:])) not in self._notes:
            self._notes.append(note)
        self._file = file = self._disk.open(path)
        if is_torn:
            file.truncate(end)
            file.fdatasync()
        if owner is None:
            self._number -= 1
            self._size_bytes = 0
            self._begin_file(self._wall_ms, CONTINUED if head.seq else OPENED)
        elif owner.get("folder") != self._owner.folder:
            self._begin_file(self._wall_ms, CONTINUED)

    def _end_of(self, name: str) -> Head:
        _, head, owner = _whole_part(self._disk.read_file(self._folder / name))
        self._check_owner(owner)
        return head

    def _check_owner(self, found: Mapping[str, Any] | None) -> None:
        if found is not None and (problem := _of_another(self._folder, self._owner, found)):
            raise AuditRefused(problem)

    def _set_aside(self, path: Path, torn: bytes) -> dict[str, Any]:
        """Keep what is behind the last whole record, durably (INV-ACF2)."""
        digest = hashlib.sha256(torn).hexdigest()
        aside = path.with_name(f"torn-{self._number:08d}-{digest[:12]}.bin")
        self._disk.write_file_atomic(aside, torn)
        details = {
            "bytes": len(torn), "sha256": digest, "kept_in": aside.name, "lines": torn.count(b"\n"),
        }  # fmt: skip
        return trail_fields(self._wall_ms, self._owner.node, TORN, details)


def owner_problem(disk: Disk, folder: Path, owner: Owner) -> str | None:
    """Return why a start would not write into the chain in `folder`, None where it would; writes nothing; raises `OSError`."""
    for name in reversed(chain_names(disk.list_dir(folder)) if disk.exists(folder) else ()):
        _, _, found = _whole_part(disk.read_file(folder / name))
        if found is not None:
            return _of_another(folder, owner, found)
    return None


def _of_another(folder: Path, own: Owner, found: Mapping[str, Any]) -> str | None:
    theirs = (found.get("cluster_id"), found.get("region"), found.get("node_id"))
    if theirs == (own.cluster_id, own.region, own.node_id):
        return None
    return (
        f"the audit trail in {folder} is that of node {theirs[2]} of region {theirs[1]}, cluster {theirs[0]}: give this node an audit_dir"
        " of its own"
    )


def trail_fields(
    wall_ms: int, node: str, operation: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a record of the trail about itself."""
    return {
        "at_ms": wall_ms, "node": node, "kind": Kind.TRAIL, "operation": operation, "outcome": Outcome.DONE, "details": dict(details),
    }  # fmt: skip


def _whole_part(data: bytes) -> tuple[int, Head, Mapping[str, Any] | None]:
    """Return where the records that follow each other end, the last of them, and what the first one says of its owner."""
    end, head, owner = 0, NO_HEAD, None
    while (stop := data.find(b"\n", end)) >= 0:
        try:
            link = read_line(data[end:stop])
        except NotALink:
            break
        if end and (link.head.seq, link.prev) != (head.seq + 1, head.digest):
            break
        if not end:
            owner = link.fields.get("details") or {}
        end, head = stop + 1, link.head
    return end, head, owner
