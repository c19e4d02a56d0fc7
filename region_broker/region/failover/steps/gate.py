"""The gate for writes as the failover machine moves it: what has closed it is what lets it open.

INV-FGT1  the gate opens only for the state that was loaded, while that is the state, and once all is over that has closed it: a load, or the
          end of a drain, that comes meanwhile opens nothing
          1. A region loads its ledgers. 2. It hears of a higher region epoch, or is asked for a promise: the gate is closed, the event is not
          durable yet. 3. The load ends, and the state is the same still. It would acknowledge what the other region cuts off.
INV-FGT2  where it comes to nothing, whatever closed the gate lets it open again: a load that has ended is not run anew for that
         1. A node is refused, as another one runs. 2. It is let in in the same turn of the loop. 3. Who would stand still for it looks
         in the next one, and finds nothing; or it has begun to, and nothing was shut yet.

Not here: who stands aside, what is refuted (`Outlook` knows both at any time, and is asked); the gate itself (`RegionRole`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from geo_replicator.failover import State
from region_broker.region.failover.steps.outlook import Outlook


class Closing(Enum):
    """What closes the gate once at a time, and may outlast the call that did."""

    HIGHER_EPOCH = auto()
    """A higher region epoch was learnt, and is not recorded yet."""
    ASIDE = auto()
    """This node was refused, as another one runs or leads, and does not stand still yet."""
    RECORDING = auto()
    """An event that ends acting is being recorded, or nobody knows whether it was."""


class Gate:
    """Closes the gate of one region for a reason, and opens it when there is none; `current` tells the machine's state of this moment."""

    def __init__(self, outlook: Outlook, current: Callable[[], State]) -> None:
        """Nothing is loaded, and nothing but that keeps the gate closed."""
        self._outlook: Final = outlook
        self._current: Final = current
        self._loaded: State | None = None
        self._reasons: dict[object, str] = {}

    def loaded(self, state: State) -> None:
        """Open, now or as soon as nothing keeps the gate closed: all that takes writes is loaded for `state`."""
        self._loaded = state
        self._open()
        # The last thing that clients were told is that it loads.
        for reason in self._reasons.values():
            self._outlook.parts.role.close_gate(reason)

    def unload(self) -> None:
        """Open no more, before anything of what was loaded stops."""
        self._loaded = None

    def close(self, closing: object, reason: str) -> None:
        """Close the gate, with `reason` for clients, until `done` says that this is over."""
        self._reasons[closing] = reason
        self._outlook.parts.role.close_gate(reason)

    def done(self, closing: object) -> None:
        """Open, if `closing` kept the gate closed, and nothing else does."""
        if self._reasons.pop(closing, None) is not None:
            self._open()

    @contextmanager
    def closed(self, reason: str) -> Iterator[None]:
        """Keep the gate closed within."""
        closing = object()
        self.close(closing, reason)
        try:
            yield
        finally:
            self.done(closing)

    def _open(self) -> None:
        role, state = self._outlook.parts.role, self._loaded
        if state is None or state is not self._current() or role.serving is None:
            return
        kept = self._reasons or self._outlook.lives.aside()
        if state.may_act and not kept and not self._outlook.is_refuted(state.region_epoch):
            role.open_gate()
