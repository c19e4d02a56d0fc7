"""One Apache Kafka node as it ships, to measure against: `python -m tests.compat.apache_kafka`.

Not part of the test run. Takes Kafka's own jars from Maven Central into the cache that `tests.compat.run` uses, starts
one node (KRaft, broker and controller in one) with a new folder on loopback, and stops it when you press Ctrl-C:

    python -m tests.compat.apache_kafka --port 9192
    tidemark bench --against 127.0.0.1:9192              # in another terminal

Settings and JVM flags are those of Kafka's own `config/server.properties` and start script. `--sync` adds
`log.flush.interval.messages=1`: the disk is synced before every answer, as Tidemark always does.

Exit codes: 0 stopped as asked; 1 the broker ended by itself; 2 a tool or a download is missing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).resolve().parent / "foreign" / "kafka" / "pom.xml"
VERSION: Final = "4.1.1"
FETCH_S: Final = 300
# kafka-run-class.sh and kafka-server-start.sh of Kafka 4.1.
JVM_FLAGS: Final = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
# config/server.properties of Kafka 4.1, with the addresses and the folder put in.
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={folder}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def main(arguments: Sequence[str]) -> int:
    """Fetch, format and run the broker until it is interrupted; returns the exit code."""
    options = _options(arguments)
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        print(
            f"an Apache Kafka needs {', '.join(missing)} on the path: install it", file=sys.stderr
        )
        return 2
    found = jars()
    if found is None:
        return 2
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as name:
        return _serve(Path(name), found, options)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.compat.apache_kafka", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--port", type=int, default=9192, help="for clients (9192)")
    parser.add_argument("--controller-port", type=int, default=9193, help="for itself (9193)")
    parser.add_argument("--heap", default="1G", help="heap of the JVM (1G, as Kafka's script)")
    parser.add_argument("--sync", action="store_true", help="sync the disk before every answer")
    return parser.parse_args(arguments)


def jars() -> Path | None:
    """Return the folder of Kafka's jars, fetched where it is not there; None if it cannot be."""
    home = os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat"
    folder = Path(home) / "apache-kafka" / VERSION / "jars"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}"], timeout=FETCH_S, check=False,
    )  # fmt: skip
    if fetched.returncode != 0:
        print("Kafka's jars were not fetched: is Maven Central within reach?", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def _serve(folder: Path, found: Path, options: argparse.Namespace) -> int:
    config = folder / "server.properties"
    text = PROPERTIES.format(
        port=options.port, controller_port=options.controller_port, folder=folder / "logs"
    )
    config.write_text(text + ("log.flush.interval.messages=1\n" if options.sync else ""))
    java = ["java", *JVM_FLAGS, "-cp", f"{found}/*"]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", "dGlkZW1hcmstYmVuY2gtMQ", "-c", str(config)],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    heap = [f"-Xmx{options.heap}", f"-Xms{options.heap}"]
    broker = subprocess.Popen([java[0], *heap, *java[1:], "kafka.Kafka", str(config)])
    print(
        f"Apache Kafka {VERSION} on 127.0.0.1:{options.port}, pid {broker.pid}; Ctrl-C ends it",
        flush=True,
    )
    try:
        return 1 if broker.wait() else 0
    except KeyboardInterrupt:
        broker.terminate()
        broker.wait()
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
