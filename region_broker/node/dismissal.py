"""Whether the region goes on without a node's folder: what this node hears of its own, and what it says of others'.

Not here: on which grounds (`region.cluster.replaced_folder`), how a node that is dismissed ends (`cluster_node`, INV-CNN4).
"""

import asyncio
import logging
from collections.abc import Callable

from idempotency.identity import Member
from region_broker.controller.cluster_folders import is_wound_back
from region_broker.controller.feature_levels import told
from region_broker.node.known_nodes import KnownNodes
from region_broker.node.node_ports import NodeRefused
from region_broker.node.storage import Begun
from region_broker.region.cluster.replaced_folder import Own, disbelief, farewell, replacement_of
from region_broker.region.peers.node_protocol import (
    NEWER_LEVEL,
    OUTDATED_FOLDER,
    REPLACED_MEMBER,
    NodeHello,
)
from region_broker.region.peers.protocol import ShutOut
from region_broker.region.peers.replacement import Replacement

_log = logging.getLogger("tidemark.node")


class Dismissal:
    """`note` hears each word; `wait` ends with what it means, once one counts."""

    def __init__(self, known: KnownNodes, begun: Callable[[], Begun], levels: range) -> None:
        """Nobody has said anything. `levels`: the feature levels that the code knows."""
        self._known = known
        self._begun = begun
        self._levels = levels
        self._noted = asyncio.Event()
        self._error: ShutOut | None = None
        self._disbelieved = ""

    def replaced(self, member: Member) -> Replacement | None:
        """Return on which grounds this node says that a member's folder was replaced (INV-FRP1)."""
        metadata = self._begun().metadata
        group = metadata.group
        return replacement_of(member, metadata.image, group.membership, group.leader, self._own())

    def is_outdated(self, theirs: NodeHello) -> bool:
        """Return whether the region knows a later start of the folder of whoever says that (INV-MN7)."""
        return is_wound_back(self._begun().metadata.image, theirs.incarnation, theirs.starts)

    def note(self, error: ShutOut) -> None:
        """Take note of what another node says of this one's folder."""
        if error.code == REPLACED_MEMBER:
            image, known_ids = self._begun().metadata.image, self._known.ids()
            why_not = disbelief(error.replacement, image, self._own(), known_ids)
            if why_not:
                if why_not != self._disbelieved:
                    self._disbelieved = why_not
                    _log.info("a peer's word that this folder was replaced does not count: %s", why_not)  # fmt: skip
                return
        self._error = error
        self._noted.set()

    async def wait(self, outdated: Callable[[], str]) -> None:
        """Wait for a word that counts; raises `NodeRefused` then. `outdated`: notes that the folder is an older copy, and says so."""
        await self._noted.wait()
        error, begun, config = self._error, self._begun(), self._known.config
        assert error is not None, "set with the event"
        if error.code == OUTDATED_FOLDER:
            raise NodeRefused(outdated())
        if error.code == REPLACED_MEMBER:
            assert error.replacement is not None, "INV-FRP2: it was believed"
            told_of = farewell(
                error.replacement, begun.metadata.image, self._own(), config.data_dir
            )
            raise NodeRefused(told_of)
        if error.code == NEWER_LEVEL:
            raise NodeRefused(
                f"node {config.own_node.node_id} does not know the feature level of region {config.region}, as another node of it"
                f" says: this version knows {told(self._levels)}. Install the version that the other nodes run, or a newer one, and"
                " start it again; nothing is to be done to its data_dir"
            )
        raise NodeRefused(
            f"node {config.own_node.node_id} was removed from region {config.region} with the data folder that it has"
            f" ({config.data_dir}), as another node of the region says. It takes part in nothing any more. If it is to be part of the"
            " region again, move that folder away and start it with an empty one: it joins as a new member, and copies everything. Where it was"
            f" added while the region ran, and the files of the others do not name it: tidemark cluster node add {config.own_node.node_id} first"
        )

    def _own(self) -> Own:
        config = self._known.config
        return Own(self._begun().member, config.cluster_id, config.region)
