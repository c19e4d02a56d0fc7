"""What keeps the process of a node small and quick: packages that are not imported, cycles that are not looked for.

INV-LEAN2  a full collection runs before anything is served, and none at the moment in which a node is ready: that one took the loop of a
           node of 1,000 logs 100 to 300 ms, and found 350 objects
INV-LEAN3  a node imports what reads certificates, tokens of issuers, mapping rules and sealed topics (cryptography, joserfc, google-re2)
           only where something of them is configured
INV-LEAN4  a node does not read the system's certificates only because it imports aiohttp, which reads them for its client: whoever trusts
           them reads them anew
INV-LEAN1  nothing here changes what a node does; without any of it the node is only larger and slower
Measured in ADR 27. Not here: what the command line imports (`main` imports commands when they are called).
"""

import ctypes
import gc
import importlib
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 20_000
LARGE_BLOCK_BYTES: Final = 4 << 20
FREE_TOP_BYTES: Final = 16 << 20
_M_TRIM_THRESHOLD: Final = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let libraries that are imported meanwhile believe that optional packages are not installed."""
    hidden = [name for name in packages if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # what the import system takes for "not there"
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def without_system_certificates() -> Iterator[None]:
    """Let contexts of TLS that are made meanwhile find no certificates of the system (INV-LEAN4); where there are 144 that is 0.15 s of CPU, and 8 MB."""
    paths = ssl.get_default_verify_paths()
    names = (paths.openssl_cafile_env, paths.openssl_capath_env)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def import_leanly() -> None:
    """Import what would bring in packages, or files, that a node does not use.

    structlog imports rich for tracebacks in colour; kio's types import hypothesis for strategies, where it is
    installed.
    """
    with without("rich", "hypothesis"):
        importlib.import_module("structlog")
        importlib.import_module("kio.static.primitive")
    with without_system_certificates():
        importlib.import_module("aiohttp")


def calm_collector() -> None:
    """Let the cycle collector skip what the imports have made, which stays, and look at the rest less often; nothing is served yet.

    Without this a full collection takes the event loop 80 ms, and the young ones a tenth of a small request's time:
    requests make many objects, but next to no cycles.
    """
    gc.collect()
    skip_what_is_there()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def skip_what_is_there() -> None:
    """Let the cycle collector skip what there is by now, without looking for cycles in it (INV-LEAN2)."""
    gc.freeze()


def keep_freed_memory() -> None:
    """Let the C library keep some of what is freed, for what comes next; only glibc knows how, elsewhere nothing happens.

    Requests and answers are blocks of about a megabyte. By itself glibc gives each back to the system, and the next one
    costs a page fault for each of its 4 KiB: a fifth of the CPU of producing records of 1 KB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, FREE_TOP_BYTES)
