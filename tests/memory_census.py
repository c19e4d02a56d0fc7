"""What the memory of this process consists of: what is alive, by type and by place, and what the allocators keep.
Of other processes: what the kernel says.

`Parts` tells a leak from a heap with holes: what is alive is in `live`; what was freed and is kept by the C library goes
back in `after_trim`. `live_by_type` and `largest_tables` say what it is that grew. All of them walk every object, for
about a second.
"""

import ctypes
import gc
import os
import resource
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

_MIB: Final = 1 << 20
_TABLES: Final = (dict, list, set, frozenset, deque, bytearray, bytes, tuple)
_NOT_FOLLOWED: Final = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)
_PATH_LENGTH: Final = 200
_TABLE_BYTES_MIN: Final = 1 << 10
_M_MMAP_THRESHOLD: Final = -3  # glibc's malloc.h
_MMAP_BYTES: Final = 128 << 10


# `struct mallinfo2` of glibc, all arenas.
_MALLINFO: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip
_MallInfo: Final[Any] = type(
    "_MallInfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in _MALLINFO]}
)


def keep_no_large_holes() -> None:
    """Let the C library give each large block back at once: by itself it soon keeps those of up to 32 MiB."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptor_count() -> int:
    """Return how many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # the folder's own


@dataclass(frozen=True)
class Process:
    """A process, from outside."""

    pid: int

    def resident_bytes(self) -> int:
        """Return its memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise ProcessLookupError(f"process {self.pid} is gone")

    def cpu_s(self) -> float:
        """Return the processor time that it took."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Return how many descriptors it has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def sockets(self) -> int:
        """Return how many of them are sockets."""
        links = Path(f"/proc/{self.pid}/fd").iterdir()
        return sum(1 for link in links if _target(link).startswith("socket:"))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed since
        return ""


@dataclass(frozen=True)
class Parts:
    """Bytes by who holds them."""

    resident: int
    after_trim: int  # resident once the C library gave back what it could
    live: int  # Python objects that are alive, by their own account
    objects: int
    heap_used: int  # by the C library's account: all but small Python objects
    heap_free: int
    descriptors: int

    @classmethod
    def now(cls) -> "Parts":
        """Look at this process."""
        gc.collect()
        library = ctypes.CDLL(None)
        before = resident_bytes()
        library.malloc_trim(0)
        after = resident_bytes()
        library.mallinfo2.restype = _MallInfo
        heap = library.mallinfo2()
        alive = live_by_type()
        return cls(
            resident=before,
            after_trim=after,
            live=sum(size for _, size in alive.values()),
            objects=sum(count for count, _ in alive.values()),
            heap_used=heap.uordblks + heap.hblkhd,
            heap_free=heap.fordblks,
            descriptors=descriptor_count(),
        )

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"resident {self.resident / _MIB:.1f} MiB, trimmed {self.after_trim / _MIB:.1f}; {self.objects} objects of "
            f"{self.live / _MIB:.1f} MiB; heap {self.heap_used / _MIB:.1f} MiB used, {self.heap_free / _MIB:.1f} free; "
            f"{self.descriptors} descriptors"
        )


def every_object() -> Iterator[Any]:
    """Yield each live object once, also what the collector does not track: texts, bytes, numbers, tables of these."""
    tracked = gc.get_objects()
    seen = {id(each) for each in tracked}
    waiting: list[Any] = []
    for each in tracked:
        yield each
        if isinstance(each, FrameType):
            continue  # ours are among them
        waiting.append(each)
        while waiting:
            for inner in gc.get_referents(waiting.pop()):
                if id(inner) not in seen and not gc.is_tracked(inner):
                    seen.add(id(inner))
                    yield inner
                    if isinstance(inner, (dict, tuple)):  # all others hold nothing
                        waiting.append(inner)


def live_by_type() -> dict[str, tuple[int, int]]:
    """Return count and bytes of what is alive, by the name of the type."""
    counts: dict[type, int] = defaultdict(int)
    sizes: dict[type, int] = defaultdict(int)
    size_of = sys.getsizeof
    for each in every_object():
        kind = type(each)
        counts[kind] += 1
        sizes[kind] += size_of(each)
    found: dict[str, tuple[int, int]] = {}
    for kind, count in counts.items():
        name = f"{kind.__module__}.{kind.__qualname__}"
        old_count, old_size = found.get(name, (0, 0))
        found[name] = old_count + count, old_size + sizes[kind]
    return found


def grown(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], most: int) -> str:
    """Return the types whose bytes grew most, in words."""
    rows: list[tuple[int, int, str]] = []
    for name, (count, size) in after.items():
        old_count, old_size = before.get(name, (0, 0))
        rows.append((size - old_size, count - old_count, name))
    rows.sort(reverse=True)
    return ", ".join(f"{count:+} {name} ({size >> 10:+} KiB)" for size, count, name in rows[:most])


def largest_tables(root: object, most: int, *, but: tuple[type, ...] = ()) -> list[str]:
    """Return the largest containers that `root` leads to, with a path to each; what is `but` is not looked into."""
    paths: dict[int, str] = {id(root): ""}
    waiting: deque[Any] = deque([root])
    found: list[tuple[int, str]] = []
    while waiting:
        each = waiting.popleft()
        path = paths[id(each)]
        if isinstance(each, but):
            continue
        if isinstance(each, _TABLES):
            size = sys.getsizeof(each)
            if size >= _TABLE_BYTES_MIN:
                found.append((size, f"{path}: {len(each)} in {size >> 10} KiB"))
        for name, inner in _inside(each):
            if id(inner) not in paths and not isinstance(inner, _NOT_FOLLOWED):
                paths[id(inner)] = f"{path}{name}"[-_PATH_LENGTH:]
                waiting.append(inner)
    return [text for _, text in sorted(found, reverse=True)[:most]]


def _inside(each: object) -> Iterator[tuple[str, Any]]:
    if isinstance(each, dict):
        for key, value in each.items():
            yield f"[{str(key)[:20]}]", value
            yield "<key>", key
        return
    attributes = getattr(each, "__dict__", {})
    yield from ((f".{name}", value) for name, value in attributes.items())
    for inner in gc.get_referents(each):
        if inner is not attributes:
            yield f".{type(inner).__name__}", inner
