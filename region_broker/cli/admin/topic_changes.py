"""What `tidemark topic alter` comes to: each setting before and after, decided without asking anybody.

A setting is named once: two words about one key are a mistake, not an order.
Not here: what values are allowed: the broker says that (`handlers.topics.config_resources`, `handlers.topics.create_partitions`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class ChangeError(ValueError):
    """What was asked makes no sense, whatever the topic is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a config is now, and what it would be if the topic did not set it."""

    value: str
    default: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is asked: configs to set, configs to give up, and the number of partitions, None to leave it."""

    new_configs: Mapping[str, str]
    gone_configs: Sequence[str]
    partition_count: int | None

    def __post_init__(self) -> None:
        """Refuse orders that contradict themselves."""
        twice = sorted(set(self.new_configs) & set(self.gone_configs))
        if twice:
            raise ChangeError(f"{twice[0]} cannot be both set and deleted")
        if not self.new_configs and not self.gone_configs and self.partition_count is None:
            raise ChangeError("nothing to change: give --config, --delete-config or --partitions")


def parse_configs(configs: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE words as pairs; raises `ChangeError`."""
    pairs: dict[str, str] = {}
    for config in configs:
        key, equals, value = config.partition("=")
        if not key or not equals:
            raise ChangeError("--config takes KEY=VALUE, such as --config retention.ms=604800000")
        if key in pairs:
            raise ChangeError(f"--config gives {key} twice")
        pairs[key] = value
    return pairs


def before_and_after(
    changes: Changes, settings: Mapping[str, Setting], partition_count: int
) -> list[dict[str, str]]:
    """Return a row per setting that is named; `settings` holds all that the topic has."""
    rows = []
    for key, value in changes.new_configs.items():
        rows.append(_row(key, _shown(settings.get(key)), value))
    for key in changes.gone_configs:
        setting = settings.get(key)
        after = "" if setting is None else f"{setting.default} (default)"
        rows.append(_row(key, _shown(setting), after))
    if changes.partition_count is not None:
        rows.append(_row("partitions", str(partition_count), str(changes.partition_count)))
    return rows


def _row(setting: str, before: str, after: str) -> dict[str, str]:
    return {"setting": setting, "before": before, "after": after}


def _shown(setting: Setting | None) -> str:
    if setting is None:
        return ""
    return f"{setting.value} (default)" if setting.is_default else setting.value
