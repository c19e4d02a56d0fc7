"""`tidemark init`: the birth of a cluster, once, at its primary region (T32); and the quorum of another region of several nodes.

INV-BI3  a birth that is refused leaves no folder that was not there
A folder that has a history keeps it: a second birth changes nothing. No birth where another node of the configuration, of
this region or another one, answers that it has history of this cluster, whatever the operator says; nor where one cannot be
asked, unless the operator says that there is none. Of a region of several nodes one is born; the others join it. A node that does
not lead says that its region has a quorum: of this region, that is history; of another one, nobody was asked for it.

INV-BI4  a region of several nodes that is not the primary one begins by an operator's word, too, at one of its nodes: an emptied node
         must never begin a second quorum beside the others. Its history it joins by itself

Not here: what a born folder does at its start (`storage`, `failover.driver`).
"""

import asyncio
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from geo_replicator.folder_life import FolderIdentity, Shown
from idempotency.identity import RegionEpoch
from region_broker.config.node_config import NodeConfig, RegionConfig, RegionNode
from region_broker.config.rules import split
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.storage import METADATA_FILE, check_owner, lock_folder
from region_broker.region.folder.identity_file import read_identity, write_identity
from region_broker.region.folder.newborn import be_born, new_identity
from region_broker.region.peers.client import opened
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    NOT_LEADING,
    STARTS_WITH_HISTORY,
    STARTS_WITH_QUORUM,
    STARTS_WITHOUT_HISTORY,
    Hello,
    PeerRefused,
    PeerUnreachable,
)

ASK_TIMEOUT_S: Final = 5.0
_OF_A_QUORUM: Final = frozenset({NOT_LEADING, NOT_ACTING, STARTS_WITH_QUORUM})


class BirthOutcome(Enum):
    """What `give_birth` did."""

    BORN = "born"
    BORN_ALREADY = "born already"
    WOULD_BE_BORN = "would be born"
    FOUNDED = "founded"
    WOULD_BE_FOUNDED = "would be founded"


class _Asker:
    """Makes handshakes for a folder without history, and keeps nothing of what it hears."""

    def __init__(self, identity: FolderIdentity) -> None:
        self._identity = identity

    def hello(self) -> Hello:
        own = self._identity
        return Hello(
            cluster_id=own.cluster_id, region=own.region, node_id=own.node_id, region_epoch=RegionEpoch(0),
            folder=Shown.of(own),
        )  # fmt: skip

    def learn(self, hello: Hello) -> None:
        return


@dataclass(frozen=True, slots=True)
class _Answer:
    has_history: bool
    speaks: bool = False
    """It speaks for its region."""


async def give_birth(
    config: NodeConfig, ports: Ports, *, no_history_elsewhere: bool, dry_run: bool = False
) -> BirthOutcome:
    """Write the birth of the cluster into the folder of `config`, if it may be.

    Raises `NodeRefused`, `IdentityDamaged`, `OSError`.
    """
    ports = ports.secured(config)
    if config.siblings and config.region != config.initial_primary_region:
        return await _found(config, ports, no_others=no_history_elsewhere, dry_run=dry_run)
    folder = Path(config.data_dir)
    if not ports.disk.exists(folder):
        _check_primary(config)
        await _check_others(config, _fresh(config, ports), ports, no_history_elsewhere)
        if dry_run:
            return BirthOutcome.WOULD_BE_BORN
    ports.disk.make_dirs(folder)
    lock = lock_folder(folder, ports.disk)
    try:
        identity = read_identity(ports.disk, folder)
        if identity is not None:
            check_owner(identity, config, folder)
            if identity.born is not None:
                return BirthOutcome.BORN_ALREADY
        _check_empty(identity, config, ports)
        identity = identity or _fresh(config, ports)
        await _check_others(config, identity, ports, no_history_elsewhere)
        if dry_run:
            return BirthOutcome.WOULD_BE_BORN
        be_born(identity, config.own.ordinal, folder, ports.disk, ports.chance, ports.clock)
        return BirthOutcome.BORN
    finally:
        lock.close()


async def _found(
    config: NodeConfig, ports: Ports, *, no_others: bool, dry_run: bool
) -> BirthOutcome:
    """Let this node's folder begin the quorum of its region, if no other node of it has one (INV-BI4)."""
    folder = Path(config.data_dir)
    identity = None
    if ports.disk.exists(folder):
        identity = read_identity(ports.disk, folder)
        if identity is not None:
            check_owner(identity, config, folder)
            if identity.founds or identity.history is not None:
                return BirthOutcome.BORN_ALREADY
        elif ports.disk.exists(folder / METADATA_FILE):
            raise NodeRefused(
                f"{folder} holds data of an older version of Tidemark: start the node, which takes it over as it is"
            )
    identity = identity or _fresh(config, ports)
    await _check_siblings(config, identity, ports, no_others)
    if dry_run:
        return BirthOutcome.WOULD_BE_FOUNDED
    ports.disk.make_dirs(folder)
    lock = lock_folder(folder, ports.disk)
    try:
        write_identity(ports.disk, folder, msgspec.structs.replace(identity, founds=True))
    finally:
        lock.close()
    return BirthOutcome.FOUNDED


async def _check_siblings(
    config: NodeConfig, identity: FolderIdentity, ports: Ports, no_others: bool
) -> None:
    answers = await asyncio.gather(*(_ask(node, identity, ports) for node in config.siblings))
    silent = []
    for node, answer in zip(config.siblings, answers, strict=True):
        who = f"node {node.node_id}"
        has_quorum = isinstance(answer, _Answer) and (answer.has_history or answer.speaks)
        if has_quorum or _is_of_a_quorum(answer):
            raise NodeRefused(
                f"{who} runs, and region {config.region} has a quorum, or is about to: a second one would part it. Start this"
                " node with its empty folder: it joins"
            )
        if isinstance(answer, PeerRefused | str):
            silent.append(f"{who} ({answer})")
    if silent and not no_others:
        raise NodeRefused(
            f"{', '.join(silent)} of region {config.region} cannot be asked for its quorum. Start every other node of the"
            " region (they wait for it), or, if you know that the region is new and none of them holds data of it, say so:"
            " --no-history-elsewhere"
        )


def _fresh(config: NodeConfig, ports: Ports) -> FolderIdentity:
    return new_identity(config.cluster_id, config.region, config.own_node.node_id, ports.chance)


def _check_primary(config: NodeConfig) -> None:
    if config.region != config.initial_primary_region:
        raise NodeRefused(
            f"a cluster is born at its primary region, and that is {config.initial_primary_region}, not {config.region}: run"
            f" tidemark init with the configuration of {config.initial_primary_region}. The other regions need none: they join"
            " when they start"
        )


def _check_empty(identity: FolderIdentity | None, config: NodeConfig, ports: Ports) -> None:
    folder = Path(config.data_dir)
    if identity is not None and identity.joined is not None:
        raise NodeRefused(
            f"{folder} holds a copy of the history born in region {identity.joined.region}: the cluster is born"
            " already. Start the node; to let it act: tidemark region failover --to"
            f" {config.region}"
        )
    if identity is None and ports.disk.exists(folder / METADATA_FILE):
        raise NodeRefused(
            f"{folder} holds data of an older version of Tidemark: start the node, which takes it over as it is"
        )
    _check_primary(config)


async def _check_others(
    config: NodeConfig, identity: FolderIdentity, ports: Ports, no_history_elsewhere: bool
) -> None:
    # Its own region's first: it joins these, whatever another region says.
    others = [(config.own, node) for node in config.siblings]
    others += [(region, node) for region in config.others for node in region.nodes]
    answers = await asyncio.gather(*(_ask(node, identity, ports) for _, node in others))
    spoken_for = {
        region.name
        for (region, _), answer in zip(others, answers, strict=True)
        if isinstance(answer, _Answer) and answer.speaks
    }
    silent = []
    for (region, node), answer in zip(others, answers, strict=True):
        who, is_of_a_quorum = _named(region, node), _is_of_a_quorum(answer)
        if is_of_a_quorum and region.name in spoken_for:
            continue  # the one that leads that region says what it has
        has_history = isinstance(answer, _Answer) and answer.has_history
        if has_history or (is_of_a_quorum and region is config.own):
            joins = "it joins the others of its region, and copies everything from them"
            if region is not config.own:
                joins = (
                    "it joins the region that acts. If none acts: tidemark region failover --to "
                    + region.name
                )
            raise NodeRefused(
                f"{who} has history of cluster {config.cluster_id}: it is born already, and a second"
                f" birth would part it. Start this node with its empty folder: {joins}"
            )
        if isinstance(answer, PeerRefused | str):
            silent.append(f"{who} ({answer})")
    if silent and not no_history_elsewhere:
        raise NodeRefused(
            f"{', '.join(silent)} cannot be asked for history of cluster {config.cluster_id}. Start every other"
            " node (they wait for the birth), or, if you know that this cluster is new and no other node holds"
            " data of it, say so: --no-history-elsewhere"
        )


def _is_of_a_quorum(answer: _Answer | PeerRefused | str) -> bool:
    """Return whether a node of a region of several does not speak for it, or not yet."""
    return isinstance(answer, PeerRefused) and answer.code in _OF_A_QUORUM


def _named(region: RegionConfig, node: RegionNode) -> str:
    several = len(region.nodes) > 1
    return f"node {node.node_id} of region {region.name}" if several else f"region {region.name}"


async def _ask(
    node: RegionNode, identity: FolderIdentity, ports: Ports
) -> _Answer | PeerRefused | str:
    """Return what a node says of its folder, or why it does not."""
    address = split(node.peer)
    try:
        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            opened(ports.peer_network, address, _Asker(identity)) as (_, hello),
        ):
            return _Answer(has_history=not hello.without_history, speaks=True)
    except TimeoutError:
        return f"no answer from {node.peer} within {ASK_TIMEOUT_S:.0f} s"
    except PeerRefused as refused:
        if refused.code in {STARTS_WITH_HISTORY, STARTS_WITHOUT_HISTORY}:
            return _Answer(has_history=refused.code == STARTS_WITH_HISTORY)
        return refused
    except PeerUnreachable as error:
        return str(error)
