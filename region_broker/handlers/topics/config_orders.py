"""What orders to change configs have in common, whatever has the configs: the types of resources, and how one is refused.

Not here: topics (`config_resources`), nodes (`broker_configs`).
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode

from region_broker.controller.refusals import (
    COMMAND_TOO_LARGE,
    NOT_ACTING,
    NOT_ALLOWED,
    CommandRefused,
)

NewConfigs: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]
"""Gives the new configs of a resource from those that it has; raises `ChangeRefused`."""


class ResourceType(IntEnum):
    """The types of resources that have configs in Kafka."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Refused(Exception):
    """A resource that stays as it is: Kafka's error and the text."""

    def __init__(self, error: ErrorCode, text: str | None) -> None:
        """Keep both; without a text the error says enough."""
        super().__init__(text or error.name)
        self.error = error
        self.text = text


_FINAL: Final[Mapping[str, ErrorCode]] = {
    NOT_ACTING: ErrorCode.not_controller,
    NOT_ALLOWED: ErrorCode.topic_authorization_failed,
    COMMAND_TOO_LARGE: ErrorCode.policy_violation,
}


def check_may_ask_again(refused: CommandRefused) -> None:
    """Raise `Refused` unless another change or a deletion came between, and what is there now is to be looked at."""
    error = _FINAL.get(refused.code)
    if error is not None:
        raise Refused(error, refused.reason) from refused
