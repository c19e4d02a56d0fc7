"""How long the client waits for what; one value for all of its parts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """All in seconds. A failover that an operator orders takes as long as the operator: see `recovery_s`."""

    connect_s: float = 30.0
    """Until the first broker answers, at the start."""
    call_s: float = 10.0
    """One call that librdkafka may be asked to go on with; a request for another producer id, between two looks at who has it."""
    commit_s: float = 30.0
    """A commit, before its outcome is looked for elsewhere."""
    recovery_s: float = 90.0
    """A new producer id, or a word on a transaction, while no region acts."""
    committed_s: float = 30.0
    """The committed position of a group."""
    ask_s: float = 3.0
    """One HTTP question to one region."""

    def __post_init__(self) -> None:
        """Refuse what would never wait, or never end."""
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name} = {getattr(self, name)} is not a number of seconds above 0"
                )


DEFAULT_TIMEOUTS = Timeouts()
