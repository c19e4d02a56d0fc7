"""Work of a request that ends early where nobody waits for its answer any more.

INV-HPT1 such work ends with its time, and as soon as its connection is known to be gone, is cut off, or its server closes; so it keeps neither whoever
         comes next nor the end of its node waiting
Not here: a Fetch that waits, which has a task of its own or none (`fetch`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from region_broker.handlers.dispatch.services import RequestContext


class _Asking:
    """A request that is given up with its connection (`wire.connection.Waiting`)."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        self._patience = patience

    def give_up(self) -> None:
        """See `Waiting`."""
        if not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def while_wanted(ctx: RequestContext, max_s: float) -> AsyncIterator[None]:
    """Cancel what is within after `max_s`, or sooner where nobody wants it any more, and raise `TimeoutError` (INV-HPT1)."""
    async with asyncio.timeout(max_s) as patience:
        asking = _Asking(patience)
        ctx.waiting[asking] = None
        try:
            yield
        finally:
            del ctx.waiting[asking]
