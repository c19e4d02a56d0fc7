"""How fast batches are sealed and opened on one core, and what a topic without a key pays: `python -m tests.process.sealed_rates`.

Prints a line per batch size: GB of records a second, microseconds a batch. Best of five rounds; nothing is asserted.
"""

import os
import time
from collections.abc import Callable
from uuid import UUID

from idempotency.record_batch import look_over, read_header
from region_broker.records.batches import Record, build_batch
from region_broker.security.sealing.sealed_batch import LogPlace, opened, sealed
from tests.fixtures.node_logs import Fixture, fixture
from tests.fixtures.sealing_keys import keys_in_memory

PLACE = LogPlace.of(UUID(int=7), 0)
NOW_MS = 1_000_000
ROUNDS = 5


def best_s(work: Callable[[], object], count: int) -> float:
    """Return the seconds that one run takes, the best of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            work()
        rounds.append((time.perf_counter() - began) / count)
    return min(rounds)


def rates(size_bytes: int) -> str:
    """Seal and open batches of one size."""
    keys = keys_in_memory().keys
    batch = build_batch([Record(None, os.urandom(size_bytes), timestamp_ms=NOW_MS)])
    header, count = read_header(batch), max(20, min(20_000, (256 << 20) // size_bytes // ROUNDS))
    closed = sealed(batch, header, PLACE, keys.sealing_key("secret"))
    seal_s = best_s(lambda: sealed(batch, header, PLACE, keys.sealing_key("secret")), count)
    open_s = best_s(lambda: opened(closed, PLACE, keys.cipher), count)
    look_s = best_s(lambda: look_over(batch, 0), count)
    return (
        f"{size_bytes:>9} bytes  sealed {size_bytes / seal_s / 1e9:6.2f} GB/s {seal_s * 1e6:9.1f} us"
        f"  opened {size_bytes / open_s / 1e9:6.2f} GB/s {open_s * 1e6:9.1f} us  looked over {look_s * 1e6:8.1f} us"
    )


def appends(some: Fixture) -> float:
    """Return the seconds that an append takes."""
    batch = build_batch([Record(None, b"v" * 200, timestamp_ms=NOW_MS)])
    found = best_s(lambda: some.partition.writer.append(batch), 2_000)
    some.sync()
    return found


def main() -> None:
    """Measure."""
    for size_bytes in (200, 1_000, 16_000, 100_000, 1_000_000, 10_000_000):
        print(rates(size_bytes))
    plain = appends(fixture())
    closed = appends(fixture({"tidemark.encryption": "secret"}, sealing=keys_in_memory()))
    print(f"an append of 200 bytes: plain {plain * 1e6:.1f} us, sealed {closed * 1e6:.1f} us")


if __name__ == "__main__":
    main()
