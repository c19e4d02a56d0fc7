"""What handlers may ask of a node's configuration, and change of it, while it runs (KIP-226).

Not here: which keys may change, and what they may be (`config.changeable`), how it is told (`handlers.admin.broker_configs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from region_broker.controller.topic_configs import ConfigType


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigRow:
    """One name of a key: what was set for the node, and for all nodes, where that counts; what the file says; the default.

    `file` None: it says nothing else than the default; `default` None: there is none.
    """

    name: str
    kind: ConfigType
    text: str
    is_changeable: bool
    own: str | None
    common: str | None
    file: str | None
    default: str | None


class NodeConfigService(Protocol):
    """The configuration of the node that is asked; ids of nodes as in the metadata, `ALL_NODES` included."""

    def rows(self) -> Sequence[NodeConfigRow]:
        """Return every key, and Kafka's name of those that have one."""
        ...

    def stored(self, node_id: int) -> Mapping[str, str]:
        """Return all that was set for a node, or for all nodes, whether or not it counts."""
        ...

    def key_of(self, name: str) -> str:
        """Return the key that a name stands for: itself, unless it is Kafka's name of one."""
        ...

    def fixed_problem(self, key: str) -> str | None:
        """Return why a key stays as it is while the node runs, None where it may change, or is none."""
        ...

    def problem(self, node_id: int, configs: Mapping[str, str]) -> str | None:
        """Return why these may not be all that is set; None if they may. What was wrong before is no reason."""
        ...

    async def replace(
        self, node_id: int, configs: Mapping[str, str], expected: Mapping[str, str]
    ) -> None:
        """Let these be all that is set, durably and in effect; `CommandRefused` where what is set is not `expected`.

        Raises `MetadataUnwritable`: nothing has changed, or the next start shows it.
        """
        ...
