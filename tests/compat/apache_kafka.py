r"""Apache Kafka as it ships, one node or several, to measure against: `python -m tests.compat.apache_kafka`.

Not part of the test run. Takes Kafka's own jars from Maven Central into the cache that `tests.compat.run` uses, starts
the nodes (KRaft, each broker and controller in one) with new folders on loopback, and stops them when you press Ctrl-C:

    python -m tests.compat.apache_kafka --port 9192
    tidemark bench --against 127.0.0.1:9192              # in another terminal
    python -m tests.compat.apache_kafka --nodes 3        # ports 9192, 9202, 9212; three copies of everything
    tidemark bench --nodes 3 --against 127.0.0.1:9192 --against-pid A,B,C    # the process ids that it printed

    python -m tests.compat.apache_kafka --as-secure DIR/security
    tidemark bench produce --bootstrap 127.0.0.1:9092 --ca DIR/security/ca/ca.pem --user admin \
        --password-file DIR/security/password --against 127.0.0.1:9192

`--as-secure` takes the folder that `tidemark dev --secure --data-dir DIR` makes: clients speak TLS by the certificate of its first node and log in
by SCRAM-SHA-512 as its administrator, who is let in by both in the same way (controllers of a Kafka speak without TLS among themselves).

Settings and JVM flags are those of Kafka's own `config/server.properties` and start script. `--sync` adds
`log.flush.interval.messages=1`: the disk is synced before every answer, as Tidemark always does. With three nodes or more,
topics and the ledgers of offsets and transactions have three replicas, of which two must be in sync; node `n` has the ports
of the first one plus 10 * (n - 1).

Exit codes: 0 stopped as asked; 1 a node ended by itself, or did not start; 2 a tool, a download or a free port is missing.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).resolve().parent / "foreign" / "kafka" / "pom.xml"
VERSION: Final = "4.1.1"
FETCH_S: Final = 300
START_S: Final = 60.0
STOP_S: Final = 20.0
_LOOK_S: Final = 0.2
NODES_MAX: Final = 9
PORTS_PER_NODE: Final = 10
REPLICAS: Final = 3
IN_SYNC_MIN: Final = 2
# kafka-run-class.sh and kafka-server-start.sh of Kafka 4.1.
JVM_FLAGS: Final = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
# config/server.properties of Kafka 4.1, with the addresses and the folder put in.
PROPERTIES: Final = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
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
offsets.topic.replication.factor={replicas}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

SECURE: Final = """\
listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=SASL_SSL://127.0.0.1:{port}
inter.broker.listener.name=SASL_SSL
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
  username="admin" password="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:ANONYMOUS
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One Kafka node of the cluster: its id, from 1 on, and its two ports on loopback."""

    node_id: int
    port: int
    controller_port: int


def main(arguments: Sequence[str]) -> int:
    """Fetch, format and run the nodes until interrupted; returns the exit code."""
    options = _options(arguments)
    if shutil.which("java") is None:
        _say("an Apache Kafka needs java on the path: install a JRE (17 or newer)")
        return 2
    found = jars()
    if found is None:
        return 2
    nodes = places(options.nodes, options.port, options.controller_port)
    taken = [port for node in nodes for port in (node.port, node.controller_port) if _taken(port)]
    if taken:
        _say(f"port {taken[0]} of 127.0.0.1 is taken: give another --port or --controller-port")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no JVM is left behind
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as name:
        try:
            return _serve(Path(name), found, nodes, options)
        except KeyboardInterrupt:
            return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.compat.apache_kafka", description=(__doc__ or "").partition("\n")[0],
        epilog="Example: python -m tests.compat.apache_kafka --nodes 3 --port 9192",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, default=1, choices=range(1, NODES_MAX + 1),
                        metavar="N", help="how many nodes (1)")  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=9192, help="for clients of the first node (9192)"
    )
    parser.add_argument(
        "--controller-port", type=int, help="of the first node, for nodes (--port + 1)"
    )
    parser.add_argument("--heap", default="1G", help="heap of each JVM (1G, as Kafka's script)")
    parser.add_argument("--as-secure", type=Path, metavar="DIR",
                        help="what `tidemark dev --secure` has in its folder `security`")  # fmt: skip
    parser.add_argument("--sync", action="store_true", help="sync the disk before every answer")
    options = parser.parse_args(arguments)
    options.controller_port = options.controller_port or options.port + 1
    return options


def places(count: int, port: int, controller_port: int) -> list[Node]:
    """Return where the nodes listen."""
    return [
        Node(at + 1, port + PORTS_PER_NODE * at, controller_port + PORTS_PER_NODE * at)
        for at in range(count)
    ]


def properties(
    nodes: Sequence[Node], node: Node, folder: Path, *, sync: bool, secure: Path | None = None
) -> str:
    """Return the configuration file of one of the nodes; `folder` is its own."""
    several = len(nodes) >= REPLICAS
    text = PROPERTIES.format(
        node_id=node.node_id, port=node.port, controller_port=node.controller_port,
        voters=",".join(f"{each.node_id}@127.0.0.1:{each.controller_port}" for each in nodes),
        folder=folder / "logs", replicas=REPLICAS if several else 1, in_sync=IN_SYNC_MIN if several else 1,
    )  # fmt: skip
    if several:
        text += f"default.replication.factor={REPLICAS}\nmin.insync.replicas={IN_SYNC_MIN}\n"
    if secure is not None:
        text += SECURE.format(
            port=node.port, controller_port=node.controller_port, password=_password(secure), keystore=folder / "node.pem",
            ca=secure / "ca" / "ca.pem",
        )  # fmt: skip
    return text + ("log.flush.interval.messages=1\n" if sync else "")


def _password(secure: Path) -> str:
    return (secure / "password").read_text().strip()


def _keystore(secure: Path) -> bytes:
    """Return the key and the certificate of the first node there is, as Kafka takes them: in one file."""
    key = next(secure.glob("*-key.pem"))
    certificate = key.with_name(key.name.replace("-key.pem", ".pem"))
    return key.read_bytes() + certificate.read_bytes()


def _taken(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def jars() -> Path | None:
    """Return the folder of Kafka's jars, fetched where it is not there; None if it cannot be."""
    home = os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat"
    folder = Path(home) / "apache-kafka" / VERSION / "jars-and-tools"
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        _say(
            f"Kafka's jars are not in {folder}, and mvn, which fetches them, is not on the path: install Maven"
        )
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}"], timeout=FETCH_S, check=False,
    )  # fmt: skip
    if fetched.returncode != 0:
        _say("Kafka's jars were not fetched: is Maven Central within reach?")
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def _serve(folder: Path, found: Path, nodes: Sequence[Node], options: argparse.Namespace) -> int:
    java = ["java", *JVM_FLAGS, "-cp", f"{found}/*"]
    configs = [
        _formatted(folder / f"node-{node.node_id}", java, nodes, node, options) for node in nodes
    ]
    heap = [f"-Xmx{options.heap}", f"-Xms{options.heap}"]
    with _brokers(
        [[java[0], *heap, *java[1:], "kafka.Kafka", str(each)] for each in configs]
    ) as brokers:
        if not _await_up(nodes, brokers):
            return 1
        bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        pids = ",".join(str(broker.pid) for broker in brokers)
        print(f"Apache Kafka {VERSION} on {bootstrap}, pid {pids}; Ctrl-C ends it", flush=True)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        ended = next(
            node for node, broker in zip(nodes, brokers, strict=True) if broker.poll() is not None
        )
        _say(f"node {ended.node_id} ended by itself: what it said stands above")
        return 1


def _formatted(
    folder: Path, java: Sequence[str], nodes: Sequence[Node], node: Node, options: argparse.Namespace
) -> Path:  # fmt: skip
    """Return the configuration file of a node whose folder is made and formatted."""
    folder.mkdir()
    config = folder / "server.properties"
    secure: Path | None = options.as_secure
    config.write_text(properties(nodes, node, folder, sync=options.sync, secure=secure))
    user: tuple[str, ...] = ()
    if secure is not None:
        keystore = folder / "node.pem"
        keystore.touch(0o600)
        keystore.write_bytes(_keystore(secure))
        user = ("--add-scram", f"SCRAM-SHA-512=[name=admin,password={_password(secure)}]")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", "dGlkZW1hcmstYmVuY2gtMQ", "-c", str(config), *user],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return config


@contextlib.contextmanager
def _brokers(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a process each, and end all of them on leaving: at once, as each waits for the others' majority."""
    brokers: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            broker = subprocess.Popen(command, start_new_session=True)
            brokers.append(broker)  # one by one: what was started is ended, whatever comes
        yield brokers
    finally:
        for broker in brokers:
            broker.terminate()
        for broker in brokers:
            try:
                broker.wait(STOP_S)
            except subprocess.TimeoutExpired:  # without a majority of controllers it does not leave
                broker.kill()
                broker.wait()


def _await_up(nodes: Sequence[Node], brokers: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Return once every node takes connections; False if one ended, or takes too long."""
    deadline_s = time.monotonic() + START_S
    for node, broker in zip(nodes, brokers, strict=True):
        while not _answers(node.port):
            if broker.poll() is not None:
                _say(
                    f"node {node.node_id} ended with exit code {broker.returncode}: what it said stands above"
                )
                return False
            if time.monotonic() > deadline_s:
                _say(f"node {node.node_id} takes no connections on port {node.port} after {START_S:.0f} s: what it"
                     " said stands above; is there memory for its --heap?")  # fmt: skip
                return False
            time.sleep(_LOOK_S)
    return True


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), _LOOK_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
