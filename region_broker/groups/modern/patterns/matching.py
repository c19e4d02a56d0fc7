"""Which names a pattern matches, found in a thread.

INV-NX9  a thread that nobody waits for any more looks at no further name: whoever asked is gone, or the node changes its role or ends, which waits for
         it
Not here: whose turn it is, as one thread at a time is taken (`resolver`; `handlers.transactions.list_transactions`).
"""

import asyncio
from collections.abc import Iterable, Iterator
from threading import Event

from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.ports.unbroken import to_its_end


async def those_in_a_thread(regex: TopicRegex, names: Iterable[str]) -> tuple[str, ...]:
    """Return which names match; whoever waits may be gone by then: the next one waits for the thread all the same, and not for long (INV-NX9)."""
    is_given_up = Event()
    wanted = _until(is_given_up, names)
    return await to_its_end(asyncio.to_thread(regex.those_of, wanted), is_given_up.set)


def _until(is_given_up: Event, names: Iterable[str]) -> Iterator[str]:
    """Yield names for as long as somebody waits for what comes of them."""
    for name in names:
        if is_given_up.is_set():
            return
        yield name
