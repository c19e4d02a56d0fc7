"""How long a node lets others wait while topics are made, and how long making one takes.

    python -m tests.process.topic_making [PARTITIONS] [TOPICS] [SYNC_MS]

Starts a real region of one node, in which each sync of a file or folder takes SYNC_MS longer, as on a disk that others keep busy; makes
topics one after the other, and asks a small request on another connection all the while. The longest that one of them waits is the longest
stall of the event loop, and what the machine adds, which is asked as long without a topic being made. Syncs by the loop's own thread
are counted, by who asked for them, and renames and removals.
"""

import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.process.many_topics import metadata_of
from tests.process.nodes_measured import CALL_S, Wire, load

CREATE_TOPICS = 19
NODE = "node"


def creation_of(name: str, partitions: int) -> bytes:
    """Return a request that makes one topic."""
    wanted = {
        "name": name, "num_partitions": partitions, "replication_factor": -1,
        "assignments": [], "configs": [],
    }  # fmt: skip
    return frame_of(
        CREATE_TOPICS, 5, {"topics": [wanted], "timeout_ms": 60_000, "validate_only": False}
    )


def serve(command: Sequence[str], sync_ms: int, noted: Path) -> None:
    """Be `tidemark`, with syncs that take longer; those on the loop's thread, which is the first, are noted, and renames and removals there."""

    def watched(name: str, work: Callable[..., Any], ms: int) -> Callable[..., Any]:
        def longer(*args: Any, **kwargs: Any) -> None:
            work(*args, **kwargs)
            if threading.current_thread() is threading.main_thread():
                with noted_by(noted, os.getpid()).open("a") as file:
                    file.write(f"{name}: {_who_asked()}\n")
            time.sleep(ms / 1000)

        return longer

    for name in ("fsync", "fdatasync"):
        setattr(os, name, watched("sync", getattr(os, name), sync_ms))
    for module, name in ((os, "replace"), (os, "unlink"), (shutil, "rmtree")):
        setattr(module, name, watched(name, getattr(module, name), 0))
    sys.argv = ["tidemark", *command]
    runpy.run_module("region_broker", run_name="__main__")


def noted_by(noted: Path, pid: int) -> Path:
    """Return where a node notes what it did on its loop."""
    return noted.with_suffix(f".{pid}")


def told_of(noted: Path, pid: int) -> None:
    """Print what a node did on its loop, by who asked for it."""
    path = noted_by(noted, pid)
    on_loop = path.read_text().splitlines() if path.exists() else []
    kinds = Counter(each.partition(":")[0] for each in on_loop)
    print(f"by the loop's thread: {dict(kinds) or 'nothing'}")
    for who, count in Counter(on_loop).most_common():
        print(f"  {count}: {who}")


def _who_asked() -> str:
    ours = [each for each in traceback.extract_stack() if "region_broker" in each.filename]
    return " < ".join(f"{Path(each.filename).stem}.{each.name}" for each in reversed(ours[-4:]))


def starter(
    sync_ms: int, noted: Path
) -> Callable[[Sequence[str], IO[bytes]], "subprocess.Popen[bytes]"]:
    """Return what starts nodes so."""

    def start(command: Sequence[str], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
        how = [sys.executable, "-m", "tests.process.topic_making", NODE, str(sync_ms), str(noted)]
        return subprocess.Popen(
            [*how, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )  # fmt: skip

    return start


class Asking:
    """A connection that asks a small request again and again."""

    def __init__(self, port: int) -> None:
        """Begin in a thread."""
        self._wire = Wire.to(port)
        self._longest_ms, self._answered = 0.0, 0
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        frame = metadata_of([])
        while not self._ended.is_set():
            took_ms = self._wire.call_ms(frame)[0]
            with self._news:
                self._longest_ms, self._answered = (
                    max(self._longest_ms, took_ms),
                    self._answered + 1,
                )
                self._news.notify_all()
            self._ended.wait(0.001)

    def longest_ms(self) -> float:
        """Return the longest wait since this was called last, that of the request which is under way included."""
        with self._news:
            behind = self._answered + 2
            assert self._news.wait_for(lambda: self._answered >= behind, CALL_S)
            found, self._longest_ms = self._longest_ms, 0.0
            return found

    def end(self) -> None:
        """Stop asking."""
        self._ended.set()
        self._thread.join(60)


def measured(
    port: int, partitions: int, topics: int
) -> tuple[list[float], list[float], list[float]]:
    """Return for each topic how long its making took, the longest wait meanwhile, and the longest wait as long afterwards, in ms."""
    wire, asking = Wire.to(port), Asking(port)
    took, waited, alone = [], [], []
    try:
        for number in range(topics):
            asking.longest_ms()
            ms, answer = wire.call_ms(creation_of(f"t{number:04d}", partitions))
            waited.append(asking.longest_ms())
            assert parse_answer(CREATE_TOPICS, 5, answer)[1].topics[0].error_code == 0
            took.append(ms)
            time.sleep(ms / 1000)
            alone.append(asking.longest_ms())
    finally:
        asking.end()
    return took, waited, alone


def told(values: list[float]) -> str:
    """Return median and most."""
    return f"median {statistics.median(values):.1f}, most {max(values):.1f} ms"


def run(folder: Path, partitions: int, topics: int, sync_ms: int) -> None:
    """Measure in `folder`."""
    noted = folder / "syncs-of-the-loop"
    with LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=7)) as cluster:
        cluster.start_by(starter(sync_ms, noted))
        cluster.start()
        name = cluster.plan.regions[0].name
        (pid,) = cluster.pids(name)
        noted_by(noted, pid).write_text("")
        took, waited, alone = measured(cluster.place(name).kafka_port, partitions, topics)
        print(f"{topics} topics of {partitions} partitions, syncs {sync_ms} ms longer  ({load()})")
        print(f"made in: {told(took)}")
        print(f"longest wait of a small request meanwhile: {told(waited)}")
        print(f"the same while nothing is made: {told(alone)}")
        told_of(noted, pid)
        assert cluster.dead() == {}


def main(arguments: Sequence[str]) -> None:
    """Measure, or be a node that is measured."""
    if arguments[:1] == [NODE]:
        serve(arguments[3:], int(arguments[1]), Path(arguments[2]))
        return
    given = [int(each) for each in arguments]
    with tempfile.TemporaryDirectory(prefix="tidemark-making-") as folder:
        run(Path(folder), *(given + [50, 20, 100][len(given) :]))


if __name__ == "__main__":
    main(sys.argv[1:])
