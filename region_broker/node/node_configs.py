"""The node's configuration as it counts now: what its file says, and what was set while it ran.

INV-NDC1  what counts follows the metadata image in the very step in which that changes, whoever changed it: an answer to a
          change is behind its effect
INV-NDC2  what counts nothing of what was set is said once, in the log, when it begins to (INV-CHG2)
Each node of a region has one of these, and the image holds what was set for each: any node may be asked for a change.

Not here: which keys may change (`config.changeable`), what follows a change (`config_effects`).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, get_type_hints

import msgspec

from region_broker.config import changeable
from region_broker.config.changeable import KAFKA_NAMES, text_of
from region_broker.config.node_config import NodeConfig
from region_broker.config.rules import choices_of, plain_type, rule_of
from region_broker.controller.metadata_commands import SetNodeConfigs
from region_broker.controller.metadata_image import ALL_NODES, MetadataImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.topic_configs import ConfigType
from region_broker.handlers.dispatch.node_configs import NodeConfigRow
from region_broker.node.storage import counting_of

_log: Final = logging.getLogger("tidemark.node")
_TYPES: Final = get_type_hints(NodeConfig, include_extras=True)
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(NodeConfig)}

Stored = Mapping[int, Mapping[str, str]]


class NodeConfigs:
    """A `NodeConfigService` over the metadata store; `follow` begins it."""

    def __init__(self, file: NodeConfig, metadata: MetadataStore) -> None:
        """Count only the file before `follow`."""
        self._file = file
        self._metadata = metadata
        self._node_id = file.own_node.node_id
        self._stored: Stored | None = None
        self._counting = changeable.counting(file, {}, {})
        self._followers: list[Callable[[NodeConfig], None]] = []

    @property
    def present(self) -> NodeConfig:
        """Return the configuration that counts now."""
        return self._counting.config

    def follow(self, take: Callable[[NodeConfig], None]) -> None:
        """Hand over what counts now, and each change of it; `take` carries it out before it returns."""
        self._followers.append(take)
        if self._stored is None:
            self._metadata.follow(self._heard)
        else:
            take(self.present)

    def _heard(self, image: MetadataImage) -> None:
        if image.node_configs is self._stored:
            return
        self._stored = image.node_configs
        before = self._counting
        self._counting = counting_of(self._file, image)
        for problem in self._counting.ignored:
            if problem not in before.ignored:  # INV-NDC2
                _log.warning(
                    "set while a node ran, and ignored: %s. `tidemark node config` removes it",
                    problem,
                )
        for take in self._followers:  # INV-NDC1
            take(self.present)

    # --- what handlers ask (`NodeConfigService`) ---

    def rows(self) -> Sequence[NodeConfigRow]:
        """See `NodeConfigService`."""
        return [*map(self._row, changeable.KEYS, changeable.KEYS), *self._kafka_rows()]

    def _kafka_rows(self) -> Iterator[NodeConfigRow]:
        for name, key in KAFKA_NAMES.items():
            yield self._row(name, key)

    def _row(self, name: str, key: str) -> NodeConfigRow:
        value, default = getattr(self._file, key), _DEFAULTS[key]
        has_default = default is not msgspec.NODEFAULT
        return NodeConfigRow(
            name=name,
            kind=_kind_of(_TYPES[key]),
            text=_meaning(name, key),
            is_changeable=key in changeable.CHANGEABLE,
            own=self._counting.own.get(key),
            common=self._counting.common.get(key),
            file=None if has_default and value == default else text_of(value),
            default=text_of(default) if has_default else None,
        )

    def stored(self, node_id: int) -> Mapping[str, str]:
        """See `NodeConfigService`."""
        return (self._stored or {}).get(node_id, {})

    def key_of(self, name: str) -> str:
        """See `NodeConfigService`."""
        return KAFKA_NAMES.get(name, name)

    def fixed_problem(self, key: str) -> str | None:
        """See `NodeConfigService`."""
        return changeable.fixed_problem(key)

    def problem(self, node_id: int, configs: Mapping[str, str]) -> str | None:
        """See `NodeConfigService`; another node's file is not known here, so values of all nodes are held against this one's."""
        own, common = self.stored(self._node_id), self.stored(ALL_NODES)
        after = (own, configs) if node_id == ALL_NODES else (configs, common)
        return changeable.problem_of_change(self._file, (own, common), after)

    async def replace(
        self, node_id: int, configs: Mapping[str, str], expected: Mapping[str, str]
    ) -> None:
        """See `NodeConfigService`."""
        command = SetNodeConfigs(node_id, changeable.normal(configs), dict(expected))
        await self._metadata.apply(command)


def _kind_of(kind: Any) -> ConfigType:
    plain = plain_type(kind)
    if plain is int:
        return ConfigType.LONG
    return ConfigType.BOOLEAN if plain is bool else ConfigType.STRING


def _meaning(name: str, key: str) -> str:
    """Return what a key may be, and where to read what it does."""
    rule = rule_of(_TYPES[key])
    right = rule.right() if rule is not None else " or ".join(map(str, choices_of(_TYPES[key])))
    same = "" if name == key else f"the same as {key}; "
    return f"{same}{right} (docs/reference/config.md)"
