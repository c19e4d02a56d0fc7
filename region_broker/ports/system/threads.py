"""The threads that `asyncio.to_thread` uses, and how to know that none of them works any more.

INV-THR1  `until_ended` returns once all that was begun before it is called has ended, whoever has given up waiting for it
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor


class Threads:
    """Of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop use threads of our own from now on."""
        self._loop = loop
        self._present = self._begin()

    def _begin(self) -> ThreadPoolExecutor:
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._loop.set_default_executor(threads)
        return threads

    async def until_ended(self) -> None:
        """Let what comes use other threads, and return once the former ones have ended (INV-THR1)."""
        former, self._present = self._present, self._begin()
        await self._loop.run_in_executor(self._present, former.shutdown)
