"""Which ports this machine gives to connections that are dialled: a listener on one of them may find it taken when it starts again.

A connection keeps such a port for a minute after its end, whoever dialled it. One that is dialled to a port of this machine on which
nobody listens may even be given that very port, and is connected to itself: a few thousand tries are enough, as Linux goes through
its ports one after the other.
Not here: who listens where (`config`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RESERVED: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")


def dialled_range(path: Path = _RANGE) -> range:
    """Return the ports that are given to connections; empty where the system does not say."""
    try:
        first, last = path.read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return range(0)


def is_dialled(port: int) -> bool:
    """Return whether a connection may be given `port`."""
    return not not_dialled([port])


def not_dialled(ports: Iterable[int], path: Path = _RANGE, reserved: Path = _RESERVED) -> list[int]:
    """Return those that no connection is given: they are out of the range, or reserved (`ip_local_reserved_ports`)."""
    dialled, kept = dialled_range(path), _reserved(reserved)
    return [port for port in ports if port not in dialled or any(port in each for each in kept)]


def _reserved(path: Path) -> list[range]:
    try:
        parts = [part.partition("-") for part in path.read_text().strip().split(",") if part]
        return [range(int(first), int(last or first) + 1) for first, _, last in parts]
    except (OSError, ValueError):
        return []
