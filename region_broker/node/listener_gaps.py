"""Nodes of the region that clients by a listener of this one are not told of: said in the log, once for each change.

INV-LGP1  a node that is left out of what clients by a listener are told (INV-HMN1) is named in the log as soon as the metadata have it,
          with what to do
Not here: which nodes these are (`config.listener_places`), what clients are told instead (`handlers.dispatch.nodes`).
"""

import logging
from collections.abc import Mapping
from typing import Final

from region_broker.config.listener_places import gaps_of, text_of
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_image import MetadataImage

_log: Final = logging.getLogger("tidemark.node")


class ListenerGaps:
    """`take_image` hears of each image in the step in which it is there."""

    def __init__(self, config: NodeConfig) -> None:
        """Judge by the file of this node."""
        self._config = config
        self._said: Mapping[str, tuple[int, ...]] = {}

    def take_image(self, image: MetadataImage) -> None:
        """Say what is new (INV-LGP1)."""
        if not self._config.listeners:
            return
        found = gaps_of(self._config, {*image.nodes, *image.added_nodes})
        for name, gaps in found.items():
            if self._said.get(name) != gaps:
                _log.warning("%s", text_of(self._config, name, gaps))
        self._said = found
