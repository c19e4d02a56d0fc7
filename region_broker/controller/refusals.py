"""How a command is refused: one exception, for all commands of the metadata."""

from typing import Final

NOT_ACTING: Final = "not-acting"
"""The code of refusals of what another node, or region, is to be asked for."""
NOT_ALLOWED: Final = "not-allowed"
"""The code of refusals of what somebody asked for who may not any more: the right to it went while it waited."""
TOO_MANY_PARTITIONS: Final = "too-many-partitions"
STALE_REGION_EPOCH: Final = "stale-region-epoch"
COMMAND_TOO_LARGE: Final = "command-too-large"
"""The code of refusals of what the log of the metadata has no room for in one entry; nothing of it was done, and asking again is of no use."""


def nobody_asked() -> bool:
    """Say that a change needs no right: the node makes it by itself."""
    return True


class CommandRefused(Exception):
    """A command that must not take effect: `reason` is for the caller, `code` for programs."""

    def __init__(self, code: str, reason: str) -> None:
        """Keep `code` (stable, kebab-case) beside the text."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
