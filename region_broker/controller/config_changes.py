"""Changes of a topic's configs: what a set of operations makes of the configs that are there (KIP-339).

All operations on a topic take effect together, or none does. The domain of a topic never changes: its transactions and
its mirrors hang on it.
Source: Kafka ConfigurationControlManager, ConfigAdminManager.
Not here: which values are honoured (`topic_configs`), where they are kept (`metadata_commands`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from region_broker.controller.topic_configs import DOMAIN_KEY, TOPIC_CONFIGS, ConfigType
from region_broker.limits import TOPIC_CONFIG_CHARS_MAX
from region_broker.log.log_config import ENCRYPTION_KEY

_STAY: Final = (DOMAIN_KEY, ENCRYPTION_KEY)
"""What AlterConfigs does not set back where it is not named: nobody may change the domain, and a tool of Kafka's, which sets a retention and has
never heard of a seal, must not open it. Who names `tidemark.encryption`, or deletes it by IncrementalAlterConfigs, means it."""
_NAMED_MAX: Final = 10
_NAME_CHARS_MAX: Final = 100
"""Of keys that a text names: a request may have thousands, and a text of Kafka's older answers 32,767 bytes."""


class ConfigOp(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One operation on one key; `value` None only for DELETE."""

    name: str
    op: int
    value: str | None


class MalformedChange(Exception):
    """The request makes no sense, whatever the configs are."""


class ChangeRefused(Exception):
    """The change makes no sense for that key."""


def check_shape(changes: Sequence[ConfigChange]) -> None:
    """Raise `MalformedChange` for a key that is there twice, no value, or an unknown operation."""
    if len({change.name for change in changes}) != len(changes):
        raise MalformedChange("a config key is there twice")
    unknown = sorted({change.op for change in changes} - set(ConfigOp))
    if unknown:
        raise MalformedChange(f"there is no config operation {unknown[0]}, only 0 to 3")
    nulls = [
        change.name for change in changes if change.value is None and change.op != ConfigOp.DELETE
    ]
    if nulls:
        more = f" and {len(nulls) - _NAMED_MAX} more" if len(nulls) > _NAMED_MAX else ""
        named = ", ".join(name[:_NAME_CHARS_MAX] for name in nulls[:_NAMED_MAX])
        raise MalformedChange(f"null is no value, for: {named}{more}")


def changed(configs: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the configs after `changes`, which `check_shape` has passed; raises `ChangeRefused`."""
    result = dict(configs)
    for change in changes:
        match ConfigOp(change.op):
            case ConfigOp.SET:
                result[change.name] = str(change.value)
            case ConfigOp.DELETE:
                result.pop(change.name, None)
            case ConfigOp.APPEND | ConfigOp.SUBTRACT as op:
                result[change.name] = _list_changed(result, change, op)
    _check_domain(configs, result)
    return result


def replaced(configs: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return what AlterConfigs leaves: `values`, and of what is there the keys of `_STAY`; raises `ChangeRefused`."""
    kept = {key: configs[key] for key in _STAY if key in configs}
    result = {**kept, **values}
    _check_domain(configs, result)
    return result


def _check_domain(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    default = TOPIC_CONFIGS[DOMAIN_KEY].default
    if before.get(DOMAIN_KEY, default) != after.get(DOMAIN_KEY, default):
        raise ChangeRefused(f"{DOMAIN_KEY} is fixed when a topic is created")


def _list_changed(configs: Mapping[str, str], change: ConfigChange, op: ConfigOp) -> str:
    known = TOPIC_CONFIGS.get(change.name)
    if known is None or known.type is not ConfigType.LIST:
        raise ChangeRefused(
            f"{change.name[:_NAME_CHARS_MAX]} is no list: {op.name} does not fit it"
        )
    value = str(change.value)
    if len(value) > TOPIC_CONFIG_CHARS_MAX:  # INV-CT4: before it is cut into millions of words
        raise ChangeRefused(
            f"what {op.name} names for {change.name} has {len(value)} characters, and a value has {TOPIC_CONFIG_CHARS_MAX} at most"
        )
    items = dict.fromkeys(
        item for item in configs.get(change.name, known.default).split(",") if item
    )
    for item in value.split(","):
        if op is ConfigOp.SUBTRACT:
            items.pop(item, None)
        else:
            items[item] = None
    return ",".join(items)
