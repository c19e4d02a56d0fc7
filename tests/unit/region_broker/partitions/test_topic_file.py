"""What is said of a topic for people: one at a time says it, and nobody waits where it is said."""

import threading
from pathlib import Path

from region_broker.partitions.topic_file import TopicFiles
from tests.simulation.disk import SimulatedDisk

FOLDER = Path("/logs/of-a-topic")
WAIT_S = 30


def test_INV_TPF1_one_at_a_time_writes_and_what_is_said_waits_for_nobody() -> None:
    """Two of them would write into one file under a temporary name."""
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    files = TopicFiles(disk)
    files.write(FOLDER, b"first")
    begun, goes = threading.Event(), threading.Event()
    writes: list[str] = []

    def slow(operation: str, _path: Path) -> None:
        if operation == "write_file_atomic":
            writes.append(threading.current_thread().name)
            begun.set()
            assert goes.wait(WAIT_S)

    disk.fault = slow
    threads = [
        threading.Thread(target=files.write, args=(FOLDER, text), name=text.decode())
        for text in (b"second", b"third")
    ]
    threads[0].start()
    assert begun.wait(WAIT_S)
    threads[1].start()
    files.write(FOLDER, b"first")  # that is what it says still
    assert writes == ["second"]
    goes.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert writes == ["second", "third"]
    disk.fault = None
    assert disk.read_file(FOLDER / "topic.json") == b"third"
