"""What fails in a callback of the event loop, where asyncio would write a line and go on.

INV-NCB1 a callback of ours that raises ends the node, as a task that raises does: what it would have gone on
         with (markers of a transaction, records of a ledger, answers) is gone, and nobody would come back for it

What fails in foreign callbacks is logged, as asyncio does: servers of HTTP and sockets close what it concerned.
Not here: tasks (`node`), what a connection's bytes lead to (its transport closes it).
"""

import asyncio
from types import TracebackType
from typing import Any, Final, NoReturn

_OURS: Final = frozenset({"region_broker", "txn_coordinator", "geo_replicator", "idempotency"})


class FailedCallbacks:
    """`handle` is the loop's exception handler; `run` raises the first error that concerns the node."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._error: BaseException | None = None
        self._failed = asyncio.Event()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what the loop reports (`loop.set_exception_handler`)."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException) and _is_ours(error):
            self._error = self._error or error
            self._failed.set()

    async def run(self) -> NoReturn:
        """Wait for a callback that fails, and raise its error."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error


def _is_ours(error: BaseException) -> bool:
    step: TracebackType | None = error.__traceback__
    while step is not None:
        name = str(step.tb_frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in _OURS:
            return True
        step = step.tb_next
    return False
