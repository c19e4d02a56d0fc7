"""kafka-python's own integration suite: kafka_python_suite.py SUITE HOST:PORT PREFIX [TEST ...].

SUITE is the unpacked source distribution. It lacks `test/__init__.py` and `test/service.py`, which start brokers; a shim
that says "the broker is there already" takes their place. With `SECURE_PORTS` (JSON: port by protocol) and `SECURE_CA` (a folder with `ca-cert`) a
test that starts a broker with TLS or logins of its own is given the one that is there. Prints `ok|FAIL|skip <tab> test <tab> reason` a line.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

TEST_LIMIT_S: Final = 60
KAFKA_VERSION: Final = "4.2"  # what kafka-python takes this broker for, by its ApiVersions
SHIM: Final = '''"""Of Tidemark: the broker runs already; this suite starts none."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, *_args, **_kwargs):
        raise RuntimeError("this test starts a broker of its own")
'''


class Reporter:
    """Prints one line per test, and ends a test that takes too long."""

    def __init__(self) -> None:
        """Nothing is printed yet."""
        self._told: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Give each test its limit."""
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(TEST_LIMIT_S)
        yield
        signal.alarm(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell how a test went: at its first phase that did not pass, or after its call."""
        name = report.nodeid.removeprefix("test/integration/")
        if name in self._told or (report.passed and report.when != "call"):
            return
        self._told.add(name)
        word = "ok" if report.passed else "skip" if report.skipped else "FAIL"
        print(f"\n{word}\t{name}\t{_reason(report)}", flush=True)


def _secured(suite_fixture: Any) -> None:
    """Have `KafkaFixture` hand out what is there, by the protocol that a test asks for."""
    ports = json.loads(os.environ["SECURE_PORTS"])

    def instance(
        cls: Any, /, broker_id: int, *, transport: str = "PLAINTEXT", sasl_mechanism: str | None = None, partitions: int = 4,
        **_of_a_broker: object,
    ) -> Any:  # fmt: skip
        speaks = "SASL_SSL" if sasl_mechanism == "PLAIN" else transport  # not offered in the clear
        made = cls("localhost", ports[speaks], broker_id, external=True, transport=speaks, sasl_mechanism=sasl_mechanism,
                   partitions=partitions)  # fmt: skip
        made.ssl_dir = os.environ["SECURE_CA"]
        return made

    def topic_names(self: Any) -> list[str]:
        """The suite asks Kafka's shell scripts."""
        with import_module("kafka").KafkaAdminClient(**self._enrich_client_params({})) as admin:
            names: list[str] = admin.list_topics()
            return names

    suite_fixture.instance = classmethod(instance)
    suite_fixture.get_topic_names = topic_names
    for name in ("start", "open", "close"):
        setattr(suite_fixture, name, lambda *_given: None)


def _reason(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:300]


def _too_long(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"not done within {TEST_LIMIT_S} s")


def main(arguments: list[str]) -> int:
    """Run the suite, or some tests of it; returns pytest's exit code."""
    suite, bootstrap, _prefix, *wanted = arguments
    root = Path(suite)
    (root / "test" / "__init__.py").touch()
    (root / "test" / "service.py").write_text(SHIM)
    os.environ.update(KAFKA_VERSION=KAFKA_VERSION, KAFKA_ROOT=str(root))
    is_secured = "SECURE_PORTS" in os.environ
    if not is_secured:
        os.environ["KAFKA_URI"] = f"kafka://{bootstrap}"
    os.chdir(root)
    sys.path.insert(0, str(root))
    if is_secured:
        _secured(import_module("test.integration.fixtures").KafkaFixture)
    names = [f"test/integration/{name}" for name in wanted] or ["test/integration"]
    quiet = [] if os.environ.get("TRACES") == "true" else ["-p", "no:terminal"]
    options = ["-p", "no:cacheprovider", "-o", "addopts=", *quiet, *names]
    return int(pytest.main(options, plugins=[Reporter()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
