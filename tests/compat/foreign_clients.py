"""Which clients and suites of strangers there are, how each is fetched and built, and what a user can do about a failure.

Not here: running them and judging what they print (`run.py`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
    settings: Mapping[str, object] = {}
    """What the nodes' configuration must say for it."""


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
    return _go_program(cache, log_level, "go")


def _sarama(cache: Path, log_level: str) -> list[str]:
    return _go_program(cache, log_level, "sarama")


def _go_program(cache: Path, log_level: str, folder: str) -> list[str]:
    program = cache / "foreign"
    _run(["go", "build", "-o", str(program), "."], cwd=HERE / folder)
    return ["env", f"TRACES={str(log_level == 'debug').lower()}", str(program)]


def _js(cache: Path, log_level: str) -> list[str]:
    for name in ("package.json", "main.js"):
        shutil.copy(HERE / "js" / name, cache / name)
    if not (cache / "node_modules").exists():
        _run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=cache)
    traces = f"TRACES={str(log_level == 'debug').lower()}"
    return ["env", traces, "node", str(cache / "main.js")]


def _spark(cache: Path, log_level: str) -> list[str]:
    jars = cache / "jars"
    if not jars.exists():
        # What PySpark does not bring itself.
        wanted = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
        _run(
            ["mvn", "-q", "-B", "-f", str(HERE / "spark" / "pom.xml"), "dependency:copy-dependencies",
             f"-DincludeArtifactIds={wanted}", f"-DoutputDirectory={jars}"], cwd=cache,
        )  # fmt: skip
    python = _python(cache, "pyspark==4.0.0")
    log = f"SPARK_LOG={log_level}"
    return ["env", log, "PYTHONPATH=", python, str(HERE / "spark" / "main.py"), str(jars)]


def _kafka_tools(cache: Path, log_level: str) -> list[str]:
    jars = cache / "jars"
    if not jars.exists():
        _run(
            ["mvn", "-q", "-B", "-f", str(HERE / "kafka_tools" / "pom.xml"), "dependency:copy-dependencies",
             f"-DoutputDirectory={jars}"], cwd=cache,
        )  # fmt: skip
    traces = f"TRACES={str(log_level == 'debug').lower()}"
    return ["env", traces, sys.executable, str(HERE / "kafka_tools" / "main.py"), str(jars)]


def _kafka_python(cache: Path, log_level: str) -> list[str]:
    version = CLIENTS["kafka-python"].version
    suite = cache / f"kafka_python-{version}"
    python = _python(cache, "pytest", "lz4", "python-snappy", "zstandard", "crc32c")
    if not suite.exists():
        _run(
            [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
             f"kafka-python=={version}"], cwd=cache,
        )  # fmt: skip
        _run(["tar", "-xzf", f"{suite}.tar.gz"], cwd=cache)
    traces = f"TRACES={str(log_level == 'debug').lower()}"
    return ["env", traces, "PYTHONPATH=", python, str(HERE / "kafka_python_suite.py"), str(suite)]


def _python(cache: Path, *packages: str) -> str:
    """Make an environment of its own in the cache; return its interpreter."""
    python = cache / "venv" / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(cache / "venv")], cwd=cache)
        try:
            _run([str(python), "-m", "pip", "install", "-q", *packages], cwd=cache)
        except MissingToolError:
            shutil.rmtree(cache / "venv")  # half an environment would be taken for a whole one
            raise
    return str(python)


CLIENTS: Final[dict[str, Foreign]] = {
    "java": Foreign(
        "Java (org.apache.kafka:kafka-clients)", "4.1.1", ("java", "javac", "mvn"), "Maven Central",
        _java,
    ),
    "go": Foreign("franz-go (Go)", "1.22.2", ("go",), "the Go module proxy", _go),
    "sarama": Foreign("sarama (Go)", "1.61.1", ("go",), "the Go module proxy", _sarama),
    "streams": Foreign(
        "Kafka Streams, exactly_once_v2 (org.apache.kafka:kafka-streams)", "4.1.1",
        ("java", "javac", "mvn"), "Maven Central", _streams,
    ),
    "js": Foreign("kafkajs (Node.js)", "2.2.4", ("node", "npm"), "the npm registry", _js),
    "kafka-tools": Foreign(
        "Kafka's command line tools (org.apache.kafka:kafka-tools)", "4.1.1", ("java", "mvn"),
        "Maven Central", _kafka_tools,
    ),
    "spark": Foreign(
        "Spark's Kafka source and sink (org.apache.spark:spark-sql-kafka-0-10_2.13)", "4.0.0",
        ("java", "mvn"), "Maven Central and PyPI", _spark,
    ),
    "kafka-python": Foreign(
        "kafka-python's own integration suite", "3.0.12", (), "PyPI", _kafka_python,
        {"auto_create_topics": True, "default_partition_count": 4, "group_min_session_timeout_ms": 1000},
    ),
}  # fmt: skip

_NO_TLS: Final = "the test starts a broker with TLS of its own: `python -m tests.compat.kafka_python_secure` gives it one"
_READS_AT_ONCE: Final = (
    "the test reads what it has just written; a mirror shows it at the next tidemark, some tens of ms later:"
    " wait for it, or ask the primary region"
)
_SUITE: Final = "kafka-python"
_CONSUMER: Final = "test_consumer_integration.py::"
_ADMIN: Final = "test_admin_integration.py::"
_SSL: Final = "test_ssl_integration.py::TestSSLConnection::"

# What a user can do about a check that does not pass, where the client's own words do not say it.
REASONS: Final[dict[tuple[str, str], str]] = {
    (_SUITE, f"{_ADMIN}test_create_describe_delete_acls"): (
        "ran before there were ACLs: SECURITY_DISABLED, as of a Kafka without an authorizer"
    ),
    (_SUITE, f"{_ADMIN}test_delete_records"): _READS_AT_ONCE,
    (_SUITE, f"{_CONSUMER}test_kafka_consumer_offsets_for_time"): _READS_AT_ONCE,
    (_SUITE, f"{_CONSUMER}test_kafka_consumer_offsets_search_many_partitions"): _READS_AT_ONCE,
    (_SUITE, f"{_CONSUMER}test_kafka_consumer_position_after_seek_to_end"): _READS_AT_ONCE,
    (_SUITE, f"{_ADMIN}test_create_partitions"): (
        "the test assigns the new partitions to a node 0, and nodes are numbered from 1: name a node that"
        " is there, or none"
    ),
    (_SUITE, f"{_SSL}test_ssl_handshake"): _NO_TLS,
    (_SUITE, f"{_SSL}test_legacy_kafka_client_ssl"): _NO_TLS,
}
