"""Which clients and suites of strangers there are, how each is fetched and built, and what a user can do about a failure.

Not here: running them and judging what they print (`run.py`).
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent / "foreign"
FETCH_S: Final = 300


class MissingToolError(Exception):
    """A tool, or a download, is not there; the text says which and what to do."""


class Foreign(NamedTuple):
    """A client in another language."""

    title: str
    version: str
    tools: Sequence[str]
    source: str
    build: Callable[[Path, str], list[str]]
    """Fetch and build into a folder; return the command that takes bootstrap, prefix and checks."""


def _run(command: Sequence[str], *, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a tool; raises `MissingToolError` with its last lines when it fails."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, timeout=FETCH_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-15:])
        raise MissingToolError(
            f"`{' '.join(command)}` ended with {done.returncode}: is the registry reachable?\n{end}"
        )
    return done.stdout


def _java(cache: Path, log_level: str) -> list[str]:
    sources = sorted((HERE / "java").glob("*.java"))
    return _jvm(cache, log_level, pom="java", sources=sources, main="Main")


def _streams(cache: Path, log_level: str) -> list[str]:
    shared = [HERE / "java" / name for name in ("World.java", "Runner.java")]
    sources = [*sorted((HERE / "streams").glob("*.java")), *shared]
    return _jvm(cache, log_level, pom="streams", sources=sources, main="StreamsChecks")


def _jvm(cache: Path, log_level: str, *, pom: str, sources: Sequence[Path], main: str) -> list[str]:
    jars, classes = cache / "jars", cache / "classes"
    if not jars.exists():
        _run(
            ["mvn", "-q", "-B", "-f", str(HERE / pom / "pom.xml"), "dependency:copy-dependencies",
             f"-DoutputDirectory={jars}"], cwd=cache,
        )  # fmt: skip
    _run(["javac", "-d", str(classes), "-cp", f"{jars}/*", *map(str, sources)], cwd=cache)
    level = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    traces = f"-Dtraces={str(log_level != 'off').lower()}"
    return ["java", "-Xmx256m", level, traces, "-cp", f"{classes}:{jars}/*", main]


def _go(cache: Path, log_level: str) -> list[str]:
    program = cache / "foreign"
    _run(["go", "build", "-o", str(program), "."], cwd=HERE / "go")
    return ["env", f"TRACES={str(log_level == 'debug').lower()}", str(program)]


def _js(cache: Path, log_level: str) -> list[str]:
    for name in ("package.json", "main.js"):
        shutil.copy(HERE / "js" / name, cache / name)
    if not (cache / "node_modules").exists():
        _run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=cache)
    traces = f"TRACES={str(log_level == 'debug').lower()}"
    return ["env", traces, "node", str(cache / "main.js")]


CLIENTS: Final = {
    "java": Foreign(
        "Java (org.apache.kafka:kafka-clients)", "4.1.1", ("java", "javac", "mvn"), "Maven Central",
        _java,
    ),
    "go": Foreign("franz-go (Go)", "1.22.2", ("go",), "the Go module proxy", _go),
    "streams": Foreign(
        "Kafka Streams, exactly_once_v2 (org.apache.kafka:kafka-streams)", "4.1.1",
        ("java", "javac", "mvn"), "Maven Central", _streams,
    ),
    "js": Foreign("kafkajs (Node.js)", "2.2.4", ("node", "npm"), "the npm registry", _js),
}  # fmt: skip

# What a user can do about a check that does not pass, where the client's own words do not say it.
REASONS: Final[dict[tuple[str, str], str]] = {
    ("java", "transactions: 50 in a row over two topics"): (
        "InvalidTxnStateException, once in 33 runs, on a loaded machine; the cause is not found yet (ROADMAP). It is"
        " fatal to the producer: close it, build another one with the same id, and read back what was"
        " committed before repeating the transaction"
    ),
}
