"""A chain on a simulated disk, and a verifier of its own: only hashlib, json and what docs/reference/security.md says."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from region_broker.security.audit.chain_files import LOCK_FILE, ChainFiles, Owner, chain_names
from region_broker.security.audit.verifying import Report, Verifier
from tests.simulation.disk import SimulatedDisk

FOLDER = Path("/data/audit")
OWNER = Owner("world", "eu", 1, "ab" * 16)
MIB = 1 << 20


def opened(disk: SimulatedDisk, owner: Owner = OWNER, *, file_bytes_max: int = MIB) -> ChainFiles:
    """Open the chain in a process that is the only one: the one before has ended."""
    disk._locks.pop(FOLDER / LOCK_FILE, None)
    return ChainFiles.open(disk, FOLDER, owner, file_bytes_max=file_bytes_max, wall_ms=1_000)


def record(what: str, **more: Any) -> dict[str, Any]:
    return {"at_ms": 5, "kind": "change", "operation": what, "outcome": "done", **more}


def files_on(disk: SimulatedDisk) -> dict[str, bytes]:
    """Return the files of the chain by their names, in their order."""
    return {name: disk.read_file(FOLDER / name) for name in chain_names(disk.list_dir(FOLDER))}


def lines_on(disk: SimulatedDisk) -> list[bytes]:
    return [line for data in files_on(disk).values() for line in data.splitlines(keepends=True)]


def operations(lines: Iterable[bytes]) -> list[str]:
    return [json.loads(line)["operation"] for line in lines]


def verified(lines: Sequence[bytes], *expected: Any) -> Report:
    verifier = Verifier(expected)
    verifier.file("a", lines)
    return verifier.end()


def verified_on(disk: SimulatedDisk, *expected: Any) -> Report:
    verifier = Verifier(expected)
    for name, data in files_on(disk).items():
        verifier.file(name, data.splitlines(keepends=True))
    return verifier.end()


def is_sound_by_hand(lines: Iterable[bytes]) -> bool:
    """Judge a chain as the reference describes it, without any of our code."""
    seq, before = 0, "0" * 64
    for line in lines:
        body, tail = line[:-76], line[-76:]
        if not (tail.startswith(b',"hash":"') and tail.endswith(b'"}\n')):
            return False
        digest = hashlib.sha256(b"tidemark-audit-1\0" + body).hexdigest()
        found = json.loads(line)
        if digest != tail[9:73].decode() or found["hash"] != digest:
            return False
        if found["seq"] != seq + 1 or found["prev"] != before:
            return False
        seq, before = seq + 1, digest
    return seq > 0
