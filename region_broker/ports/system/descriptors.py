"""How many files and sockets this process may have open.

The number is raised as far as the system lets us, once, before anything is opened.
Not here: who gets them (`wire.connection_caps`).
"""

import resource
from typing import Final

UNLIMITED: Final = 1 << 30


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one; return how many descriptors may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in (hard, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
