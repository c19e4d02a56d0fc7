"""sarama's own functional tests against a region of three nodes: `python -m tests.compat.sarama_suite [-run PATTERN]`.

Not part of the test run: it fetches sarama and toxiproxy from the Go module proxy. The tests reach each node through toxiproxy, at
the addresses that nodes name themselves by, and stop and start nodes with `docker compose stop kafka-2`: a program of that name
says so to this one. What else they want of docker (Java's tools in a container, five brokers) is not there.

Exit codes: that of the tests; 2 a tool or a download is missing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from region_broker.workbench.stage import wait_until
from tests.compat.foreign_clients import MissingToolError

SARAMA: Final = "github.com/IBM/sarama@v1.61.1"
TOXIPROXY: Final = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
KAFKA_VERSION: Final = "4.1.1"
NODE_IDS: Final = (1, 2, 3)
# The harness of sarama knows five brokers at these ports and more: the last two proxies lead to the first two nodes again.
FIRST_PORT: Final = 29_091
PROXIES: Final = 5
NODES_AT: Final = "127.0.0.2"
TOXIPROXY_PORT: Final = 8_474
BUILD_S: Final = 600
PATTERN: Final = "TestFunc|TestConsumer(FetchFollower|HighWater|Partial|GroupDead)|TestVersionMatrix|TestInterceptors|TestAsyncProducerRemote"
_DOCKER: Final = """\
#!{python}
import pathlib, sys
word, node = sys.argv[-2], sys.argv[-1].removeprefix("kafka-")
folder = pathlib.Path({folder!r})
if "logs" in sys.argv:
    print((folder / (node + ".log")).read_text().replace("OUT_OF_ORDER_SEQUENCE_NUMBER", "OutOfOrderSequenceException"))
else:
    with open(folder / "asked", "w") as asked:
        asked.write(word + " " + node)
    with open(folder / "done") as done:
        sys.exit(done.read() != "done")
"""


class Nodes:
    """The nodes of one region, which clients meet at toxiproxy's ports."""

    def __init__(self, folder: Path) -> None:
        """Write their configurations; nothing runs."""
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for node_id in NODE_IDS:
            self._config(node_id).write_text(json.dumps(self._settings(node_id)))

    def _config(self, node_id: int) -> Path:
        return self._folder / f"{node_id}.json"

    def _settings(self, node_id: int) -> dict[str, object]:
        nodes = [
            {"node_id": each, "kafka": f"localhost:{FIRST_PORT - 1 + each}", "rack": str(each),
             "peer": f"{NODES_AT}:{FIRST_PORT + 99 + each}", "http": f"{NODES_AT}:{FIRST_PORT + 199 + each}"}
            for each in NODE_IDS
        ]  # fmt: skip
        return {
            "region": "eu", "node_id": node_id, "cluster_id": "sarama", "initial_primary_region": "eu",
            "data_dir": str(self._folder / str(node_id)), "listen_host": NODES_AT,
            "group_min_session_timeout_ms": 1000,
            "regions": [{"name": "eu", "ordinal": 0, "nodes": nodes}],
        }  # fmt: skip

    def born(self) -> None:
        """Give birth to the cluster, and start all nodes."""
        config = str(self._config(NODE_IDS[0]))
        subprocess.run(
            [sys.executable, "-m", "region_broker", "init", "--no-history-elsewhere", "--config", config],
            check=True,
        )  # fmt: skip
        for node_id in NODE_IDS:
            self._spawn(node_id)
        for process in self._running.values():
            _await_ready(process)
        wait_until("all nodes to be in sync, and to vote", 60.0, self._whole)

    def _whole(self) -> bool:
        with urllib.request.urlopen(f"http://{NODES_AT}:{FIRST_PORT + 200}/v1/cluster") as answer:
            told = json.load(answer)
        return len(told["leadership"]["in_sync"]) == len(told["quorum"]["voters"]) == len(NODE_IDS)

    def _spawn(self, node_id: int) -> None:
        command = [
            sys.executable, "-m", "region_broker", "broker", "--config", str(self._config(node_id)),
        ]  # fmt: skip
        with (self._folder / f"{node_id}.log").open("ab") as log:
            self._running[node_id] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def ask(self, word: str, node_id: int) -> None:
        """Stop a node, or start it, as `docker compose` would."""
        process = self._running[node_id]
        if word == "start" and process.poll() is not None:
            self._spawn(node_id)
            _await_ready(self._running[node_id])
        elif word == "stop" and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def stop(self) -> None:
        """End all that run."""
        for node_id in NODE_IDS:
            if node_id in self._running:
                self.ask("stop", node_id)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready"), "a node did not start: see its log"


def _serve(nodes: Nodes, folder: Path) -> None:
    """Do what the program called docker asks for."""
    while True:
        word, node_id = (folder / "asked").read_text().split()
        nodes.ask(word, int(node_id))
        (folder / "done").write_text("done")


def _proxies(program: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start toxiproxy, and let it lead to the nodes."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(program), "-host", "127.0.0.1", "-port", str(TOXIPROXY_PORT)], stdout=out, stderr=out
        )  # fmt: skip
    time.sleep(1)
    for at in range(PROXIES):
        node = {"upstream": f"{NODES_AT}:{FIRST_PORT + at % len(NODE_IDS)}", "enabled": True}
        row = {"name": f"kafka{at + 1}", "listen": f"127.0.0.1:{FIRST_PORT + at}", **node}
        asked = urllib.request.Request(
            f"http://127.0.0.1:{TOXIPROXY_PORT}/proxies", json.dumps(row).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(asked).close()
    return process


def built() -> tuple[Path, Path]:
    """Fetch and build both; return the folder of sarama with its tests as a program, and toxiproxy."""
    if shutil.which("go") is None:
        raise MissingToolError("sarama's tests need go on the path")
    home = os.environ.get("TIDEMARK_COMPAT_CACHE") or Path.home() / ".cache" / "tidemark-compat"
    cache = Path(home) / "sarama-suite"
    source = cache / "sarama"
    if not (source / "suite.test").exists():
        cache.mkdir(parents=True, exist_ok=True)
        told = _go(["mod", "download", "-json", SARAMA], cache, GOFLAGS="-mod=mod")
        shutil.copytree(json.loads(told)["Dir"], source, dirs_exist_ok=True)
        for each in (source, *source.rglob("*")):
            each.chmod(each.stat().st_mode | 0o200)
        _go(["install", TOXIPROXY], cache, GOBIN=str(cache))
        _go(["test", "-tags=functional", "-c", "-o", "suite.test", "."], source)
    return source, cache / "server"


def _go(arguments: Sequence[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        ["go", *arguments], cwd=folder, env={**os.environ, **environment}, timeout=BUILD_S,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise MissingToolError(f"`go {' '.join(arguments)}` failed: is the module proxy reachable?")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Run the tests; returns their exit code."""
    try:
        source, toxiproxy = built()
    except MissingToolError as error:
        print(error, file=sys.stderr)
        return 2
    pattern = arguments[1] if arguments[:1] == ["-run"] else PATTERN
    with tempfile.TemporaryDirectory(prefix="tidemark-sarama-") as name:
        return _run(Path(name), source, toxiproxy, pattern)


def _run(folder: Path, source: Path, toxiproxy: Path, pattern: str) -> int:
    for pipe in ("asked", "done"):
        os.mkfifo(folder / pipe)
    docker = folder / "docker"
    docker.write_text(_DOCKER.format(python=sys.executable, folder=str(folder)))
    docker.chmod(0o755)
    nodes, proxies = Nodes(folder), None
    try:
        nodes.born()
        proxies = _proxies(toxiproxy, folder / "toxiproxy.log")
        threading.Thread(target=_serve, args=(nodes, folder), daemon=True).start()
        environment = {
            "TOXIPROXY_ADDR": f"http://127.0.0.1:{TOXIPROXY_PORT}", "KAFKA_VERSION": KAFKA_VERSION,
            "PATH": f"{folder}:{os.environ['PATH']}",
        }  # fmt: skip
        tests = ["./suite.test", "-test.v", "-test.timeout", "15m", "-test.run", pattern]
        return subprocess.run(tests, cwd=source, env={**os.environ, **environment}).returncode  # noqa: PLW1510
    finally:
        nodes.stop()
        if proxies is not None:
            proxies.terminate()
            proxies.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
