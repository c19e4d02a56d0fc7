"""One producer at full speed, in a process of its own: `python -m region_broker.cli.bench.full_speed BOOTSTRAP TOPIC CLIENT_ID`.

It writes until its standard input ends, then prints one JSON line: bytes that were acknowledged, seconds, and for how many ms it was told to
be quiet. Begins with a line `writing` once the first record is acknowledged.
Not here: whom it is measured beside (`quotas`).
"""

import json
import sys
import threading
import time

import click
from confluent_kafka import Producer

_VALUE = b"x" * 1_000
_BATCH_BYTES = 100_000
_WAIT_S = 0.05


def main(bootstrap: str, topic: str, client_id: str) -> None:
    """Write until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=_until_input_ends, args=(ended,), daemon=True).start()
    acknowledged_bytes, quiet_s = 0, 0.0

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged_bytes
        del message
        if error is None:
            acknowledged_bytes += len(_VALUE)

    def throttled(event: object) -> None:
        nonlocal quiet_s
        quiet_s += getattr(event, "throttle_time", 0.0)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 5, "batch.size": _BATCH_BYTES,
         "queue.buffering.max.messages": 2_000, "throttle_cb": throttled, "log_level": 0}
    )  # fmt: skip
    producer.produce(topic, _VALUE, on_delivery=delivered)
    producer.flush()
    click.echo("writing")
    began_s = time.monotonic()
    acknowledged_bytes, quiet_s = 0, 0.0
    while not ended.is_set():
        try:
            producer.produce(topic, _VALUE, on_delivery=delivered)
        except BufferError:
            producer.poll(_WAIT_S)
        else:
            producer.poll(0)
    seconds = time.monotonic() - began_s
    click.echo(
        json.dumps(
            {"bytes": acknowledged_bytes, "seconds": seconds, "quiet_ms": round(1_000 * quiet_s)}
        )
    )


def _until_input_ends(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
