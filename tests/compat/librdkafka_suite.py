"""librdkafka's own tests against real regions: `python -m tests.compat.librdkafka_suite FOLDER [TEST ...]`.

Not part of the test run. FOLDER is a source tree of librdkafka in which `./configure && make libs && make -C tests build` was
done; with RapidJSON and OpenSSL at hand more of its tests are built. Its test runner runs each test by itself, in quick mode,
against new regions; tests that need no broker are left out. Those that call Kafka's scripts find them in `$KAFKA_PATH/bin`, if
that is set, and `make -C tests/java` was done. A TEST is a number (`0103`); without any, all those in the table of
docs/reference/compatibility.md are run.

    python -m tests.compat.librdkafka_suite ../librdkafka 0103 0105 --place nodes
    python -m tests.compat.librdkafka_suite ../librdkafka --place nodes --group-protocol consumer

Exit codes: 0 all passed or skipped themselves; 1 a test failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from region_broker.workbench.local_cluster import LocalCluster
from tests.compat.places import PLACES, start
from tests.compat.run import DOCUMENT, Outcome

KAFKA_VERSION: Final = "4.1.0"
TEST_S: Final = 300
# What the runner's summary says of a test: `|  0103_transactions  |  PASSED |  12.345s |`, with colours between.
_SUMMARY: Final = re.compile(r"\|(?:\x1b\[\d*m)? *(\d{4}_\w+) *\| *(PASSED|FAILED|SKIPPED) *\|")
# What it says where a test fails; it may abort then, before the summary.
_FAILURE: Final = re.compile(r'### Test "(\d{4}_\w+)[^\n]*\n([^\n]*)')
_IN_TABLE: Final = re.compile(r"^\| (\d{4})_\w+ \|", re.MULTILINE)
# What the names of tests end with that need no broker, and are left out.
WITHOUT_BROKER: Final = ("_mock", "_local")
# Numbers whose tests, or some of whose tests, belong to librdkafka's scenario "noautocreate", and of those the ones with others, too.
NO_AUTO_CREATION: Final = frozenset({"0045", "0107", "0111"})
IN_BOTH: Final = frozenset({"0045"})


def main(arguments: Sequence[str]) -> int:
    """Run what was asked; returns the exit code."""
    options = _options(arguments)
    numbers = options.tests or list(dict.fromkeys(_IN_TABLE.findall(DOCUMENT.read_text("utf-8"))))
    failed = 0
    for number in numbers:
        for scenario in _scenarios(number):
            began = time.monotonic()
            for outcome in _run(number, scenario, options):
                failed += not outcome.passed
                took_s = time.monotonic() - began
                print(
                    f"{outcome.word:7} {outcome.check}  {took_s:.0f} s  {outcome.reason}",
                    flush=True,
                )
    return 1 if failed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.compat.librdkafka_suite", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="librdkafka's source tree, built with its tests")
    parser.add_argument("tests", nargs="*", help="which tests, by number (those in the table)")
    parser.add_argument("--place", choices=list(PLACES), default="one", help="where to aim (one)")
    parser.add_argument("--group-protocol", choices=["classic", "consumer"], default="classic")
    parser.add_argument(
        "--keep", type=Path, help="a folder for what failed tests and their nodes said"
    )
    return parser.parse_args(arguments)


def _scenarios(number: str) -> list[str]:
    without = ["noautocreate"] if number in NO_AUTO_CREATION else []
    return without if without and number not in IN_BOTH else ["default", *without]


def _run(number: str, scenario: str, options: argparse.Namespace) -> list[Outcome]:
    """Run the tests of one number in one scenario against new regions."""
    settings = {
        "auto_create_topics": scenario == "default",
        "default_partition_count": 4,
        "group_min_session_timeout_ms": 1000,
    }
    place = PLACES[options.place]
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-librdkafka-") as name,
        LocalCluster.open(
            Path(name), region_count=place.region_count, node_count=place.node_count, port=0,
            new_cluster_id=UUID(int=1), settings=settings,
        ) as cluster,
    ):  # fmt: skip
        start(cluster, place)
        bootstrap = cluster.plan.regions[-1].bootstrap
        config = Path(name) / "test.conf"
        config.write_text(f"metadata.broker.list={bootstrap}\n")
        of_test = {"TESTS": number, "TEST_SCENARIO": scenario, "BROKERS": bootstrap}
        printed = _test_runner(of_test, config, options)
        outcomes = _outcomes_of(printed, number)
        if ended := cluster.dead():
            outcomes.append(Outcome(f"{number}: the region lives on", False, f"ended: {ended}"))
        if options.keep and not all(outcome.passed for outcome in outcomes):
            _keep(options.keep, number, printed, cluster)
    return outcomes


def _test_runner(of_test: Mapping[str, str], config: Path, options: argparse.Namespace) -> str:
    """Run librdkafka's test runner; returns what it printed."""
    source = options.folder.resolve()
    environment = {
        "RDKAFKA_TEST_CONF": str(config),
        **of_test,
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": options.group_protocol,
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
    }
    try:
        done = subprocess.run(
            ["./test-runner", "-Q", "-p1", "-L"], cwd=source / "tests", timeout=TEST_S,
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace")
    return done.stdout.decode(errors="replace")


def _outcomes_of(printed: str, number: str) -> list[Outcome]:
    """Return what the runner's summary says, or how the test failed that kept it from one."""
    found = [
        Outcome(name, word != "FAILED", "", skipped=word == "SKIPPED")
        for name, word in _SUMMARY.findall(printed)
        if name.startswith(number) and not name.endswith(WITHOUT_BROKER)
    ]
    told = dict(_FAILURE.findall(printed)) or {number: f"no summary within {TEST_S} s"}
    return found or [Outcome(name, passed=False, reason=why[:300]) for name, why in told.items()]


def _keep(folder: Path, number: str, printed: str, cluster: LocalCluster) -> None:
    """Keep what was said beside a failure: it may not come again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.log").write_text(printed)
    for node in cluster.plan.nodes:
        log = cluster.data_dir(node.name) / "node.log"
        (folder / f"{number}-{node.node_id}.log").write_bytes(log.read_bytes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
