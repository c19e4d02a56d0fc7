"""What only this machine can tell of a configuration: of its folder and its addresses.

`tidemark broker`, with and without `--check`, looks before anything is opened.

INV-STC1  nothing is written, and nothing stays bound or locked
INV-STC2  what is found here a start would have found, one thing after the other: a start refuses nothing else of the
         configuration, but for what another process does meanwhile

Of a folder that a running node uses only its owner is looked at, and no port then: they are that node's.
Not here: what the configuration says of itself (`config`), what a start does (`storage`, `node`).
"""

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from geo_replicator.folder_life import FolderIdentity
from region_broker.config.exposure import exposure_problems, knows_its_clients, warning_of
from region_broker.config.node_config import NodeConfig
from region_broker.config.relations import PORTS
from region_broker.config.rules import Problem, split
from region_broker.controller.image_database import MetadataUnreadable
from region_broker.controller.metadata_store import incarnation_of, stored_image
from region_broker.controller.raft.entries import Member
from region_broker.node.auditing import keeps_trail, trail_problem
from region_broker.node.logins import login_problems, login_remarks
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.node_tls import tls_problems
from region_broker.node.secret_files import open_secrets, ring_on_file
from region_broker.node.storage import (
    METADATA_FILE,
    check_owner,
    contradictions,
    is_in_use,
    part_missing,
)
from region_broker.ports.network import ByteStream, Network
from region_broker.ports.system.dialled_ports import is_dialled
from region_broker.ports.system.watched_file import WatchedFile
from region_broker.region.failover.journal import JournalDamaged
from region_broker.region.folder.identity_file import IdentityDamaged, read_identity
from region_broker.security.http_tokens import FILE_BYTES_MAX, TokensUnusable, rows_of
from region_broker.security.sealing.key_ring import RingError, ring_bytes, ring_of, unlock
from region_broker.security.sealing.key_sources import KeySources

_DIALLED: Final = (
    "this machine gives this port to connections, too (net.ipv4.ip_local_port_range), which keep it for a minute after their end, so"
    " that a start finds it in use: take a lower one, or reserve it (sysctl net.ipv4.ip_local_reserved_ports)"
)

_NOBODY_ABOVE: Final = "clients prove who they are, and super_users names nobody: only ACLs say who may do what, and who makes them must be allowed to by one"


@dataclass(slots=True)
class Findings:
    """What was found; `in_use`: a node runs on the folder, so no more than its owner was looked at.

    `unborn`: the folder has no history, which refuses no start; such a node joins whoever acts, or waits (T32).
    """

    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What refuses no start now, and may refuse one later."""
    in_use: bool = False
    unborn: bool = False


async def look_around(config: NodeConfig, ports: Ports) -> Findings:
    """Return everything that would refuse a start now."""
    folder = Path(config.data_dir)
    if exposed := exposure_problems(config):  # nothing of such a node is tried
        return Findings(exposed)
    try:
        found = Findings(in_use=is_in_use(folder))
    except OSError as error:
        return Findings([_unusable(config, folder, error)])
    spoken = await asyncio.to_thread(lambda: tls_problems(config, ports.network, ports.clock))
    found.problems += spoken[0]
    found.remarks += spoken[1]
    found.remarks += await asyncio.to_thread(lambda: list(open_secrets(config, ports.disk)))
    if warning := warning_of(config):
        found.remarks.append(warning)
    found.problems += await asyncio.to_thread(lambda: list(_token_problems(config)))
    found.problems += await asyncio.to_thread(lambda: list(_key_problems(config, ports)))
    found.remarks += await asyncio.to_thread(lambda: list(_key_remarks(config, ports)))
    found.problems += await asyncio.to_thread(lambda: list(login_problems(config, ports.disk)))
    found.remarks += await asyncio.to_thread(lambda: list(login_remarks(config, ports.disk)))
    if knows_its_clients(config) and not config.super_users:
        found.remarks.append(_NOBODY_ABOVE)
    if found.in_use:
        found.problems += await asyncio.to_thread(lambda: list(_owner_problems(config, ports)))
        return found
    found.problems += await asyncio.to_thread(lambda: list(_folder_problems(config, ports)))
    found.unborn = not found.problems and await asyncio.to_thread(_is_unborn, folder, ports)
    for key in PORTS:
        problem = await _port_problem(config, key, ports.network)
        if problem is not None:
            found.problems.append(problem)
        elif is_dialled(split(getattr(config.own_node, key))[1]):
            found.remarks.append(f"{key} = {getattr(config.own_node, key)!r}: {_DIALLED}")
    return found


def _token_problems(config: NodeConfig) -> Iterator[Problem]:
    """Yield where the file of tokens cannot be used: it would let nobody in."""
    path = config.http_tokens_file
    if not path:
        return
    try:
        rows_of(WatchedFile(Path(path), FILE_BYTES_MAX).look() or b"")
    except (TokensUnusable, OSError) as error:
        why = str(error) if isinstance(error, TokensUnusable) else error.strerror or "OSError"
        yield Problem(
            f"http_tokens_file = {path!r}", f"cannot be used ({why})",
            f"a file that `tidemark token create NAME --role admin --file {path}` writes, and this node may read",
        )  # fmt: skip


def _key_problems(config: NodeConfig, ports: Ports) -> Iterator[Problem]:
    """Yield where the file of keys cannot be used; no source is asked: one that is silent refuses no start (INV-SEA2)."""
    if path := config.encryption_keys_file:
        try:
            ring_of(ring_bytes(ports.disk, Path(path)), Path(path))
        except RingError as error:
            yield Problem(
                f"encryption_keys_file = {path!r}", f"cannot be used ({error})",
                "a file that `tidemark key make` writes, and this node may read",
            )  # fmt: skip


def _key_remarks(config: NodeConfig, ports: Ports) -> Iterator[str]:
    """Yield which keys a start would not have. Sources that are files are read; no command is run, and a variable may be the node's alone."""
    path, ring = config.encryption_keys_file, ring_on_file(config, ports.disk)
    for name, key in unlock(KeySources(ports.disk), {n: k for n, k in ring.items() if k.source.file}).items():  # fmt: skip
        if key.failed:
            yield (
                f"key {name!r} of {path} is not whole here ({key.missing}): the node starts, and what is sealed under it can be neither written"
                f" nor read until its source answers (tidemark key list {path} --check)"
            )


def _folder_problems(config: NodeConfig, ports: Ports) -> Iterator[Problem]:
    folder = place = Path(config.data_dir)
    try:
        place = _nearest_existing(folder)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield _unusable(config, place, error)
        return
    yield from _trail_problems(config, ports)
    if place != folder:
        return
    try:
        identity = read_identity(ports.disk, folder)
        if identity is not None:
            check_owner(identity, config, folder)
        image = stored_image(folder / METADATA_FILE, ports.disk, _member(config, identity, ports))
        if image is not None:
            yield from contradictions(image, config)
        # One that a start would first migrate or recover is not judged here.
        if image is not None or not (folder / METADATA_FILE).exists():
            missing = part_missing(folder, identity, image, ports.disk)
            if missing is not None:
                yield Problem(_key(config), "cannot be opened", missing)
    except (NodeRefused, IdentityDamaged, MetadataUnreadable, JournalDamaged, OSError) as error:
        yield Problem(_key(config), "is not for this configuration", str(error))


def _trail_problems(config: NodeConfig, ports: Ports) -> Iterator[Problem]:
    """Yield why the audit trail cannot be kept where it is to lie."""
    key = f"audit_dir = {config.audit_dir!r}"
    try:
        if config.audit_dir and keeps_trail(config):
            with tempfile.TemporaryFile(dir=_nearest_existing(Path(config.audit_dir))):
                pass
        problem = trail_problem(config, ports.disk)
    except OSError as error:
        right = "a folder of its own that this user may write, or make"
        yield Problem(key, f"cannot be used ({error.strerror or error})", right)
        return
    if problem is not None:
        yield Problem(key, "is another node's", problem)


def _owner_problems(config: NodeConfig, ports: Ports) -> Iterator[Problem]:
    """Yield whose the folder of a node that runs is, where it is not this one's: it is to be restarted with this configuration."""
    folder = Path(config.data_dir)
    try:
        identity = read_identity(ports.disk, folder)
        if identity is not None:
            check_owner(identity, config, folder)
    except (NodeRefused, IdentityDamaged, OSError) as error:
        yield Problem(_key(config), "is not for this configuration", str(error))


def _member(config: NodeConfig, identity: FolderIdentity | None, ports: Ports) -> Member | None:
    """Return as whom a start would open the log of the quorum; None where it would begin one."""
    path = Path(config.data_dir) / METADATA_FILE
    begun = incarnation_of(path, ports.disk) if identity is None else UUID(hex=identity.folder_id)
    return None if begun is None else Member(config.own_node.node_id, begun)


def _is_unborn(folder: Path, ports: Ports) -> bool:
    identity = read_identity(ports.disk, folder)
    # A folder of a version before identities has its history in its metadata.
    return not (identity.history if identity else ports.disk.exists(folder / METADATA_FILE))


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or what it would be made in; raises OSError where that cannot be told."""
    place = folder.absolute()
    while True:
        try:
            place.stat()
        except FileNotFoundError:
            place = place.parent
        else:
            return folder if place == folder.absolute() else place


def _key(config: NodeConfig) -> str:
    return f"data_dir = {config.data_dir!r}"


def _unusable(config: NodeConfig, place: Path, error: OSError) -> Problem:
    where = "" if place == Path(config.data_dir) else f" in {place}"
    return Problem(
        _key(config),
        f"cannot be used ({error.strerror or error}{where})",
        "a folder that this user may write, or make",
    )


async def _port_problem(config: NodeConfig, key: str, network: Network) -> Problem | None:
    address = getattr(config.own_node, key)
    host, port = split(address)
    host = config.listen_host.removeprefix("[").removesuffix("]") or host
    try:
        listener = await network.listen(host, port, _refuse)
    except OSError as error:
        listens = f", listen_host = {config.listen_host!r}" if config.listen_host else ""
        subject = f"{key} = {address!r} of region {config.region}{listens}"
        if isinstance(error, socket.gaierror):
            return Problem(
                subject,
                f"cannot be resolved ({error.strerror or error})",
                f"{host!r} must be a name that this machine knows, or its address",
            )
        why = os.strerror(error.errno) if error.errno else str(error)
        return Problem(
            subject,
            f"cannot be bound ({why})",
            "stop what uses the port, change it, or bind an address of this machine by listen_host"
            + (f". {_DIALLED}" if error.errno == errno.EADDRINUSE and is_dialled(port) else ""),
        )
    listener.close()
    await listener.wait_closed()
    return None


async def _refuse(stream: ByteStream) -> None:
    """Take no connection: this is a look, not a start."""
    stream.close()
