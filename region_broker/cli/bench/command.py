"""`tidemark bench`: how fast a broker is, on this machine, now.

INV-BC1  without --bootstrap a cluster of our own is started in a temporary folder and removed at the end
INV-BC2  any broker that speaks Kafka's protocol is measured in the same way: by confluent-kafka alone
"""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from region_broker.cli.bench.figures import BenchFailed, Plan, Row, Run
from region_broker.cli.output import EXIT_USAGE, fail, output_option, print_json, print_rows

LOADS: Final = ("produce", "consume", "transactions")
_PRODUCERS_MAX: Final = 256


@click.command(
    epilog="""\b
Examples:
  tidemark bench                                        all, on a region of its own
  tidemark bench transactions --producers 1,8 --runs 5
  tidemark bench produce --size 1024 --bootstrap 127.0.0.1:9092 -o json
  tidemark bench transactions --regions 2               with a mirror that follows
"""
)
@click.argument("load", type=click.Choice([*LOADS, "all"]), default="all")
@click.option("--bootstrap", envvar="TIDEMARK_BOOTSTRAP",
              help="A Kafka address to measure; without it a cluster is started here.")  # fmt: skip
@click.option("--regions", "region_count", default=1, show_default=True,
              type=click.IntRange(1, 8), help="Regions of the cluster that is started.")  # fmt: skip
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1, 600),
              help="Measured length of one run; a warm-up comes before it.")  # fmt: skip
@click.option("--size", "size_bytes", default=100, show_default=True,
              type=click.IntRange(1, 900_000), help="Bytes of one record.")  # fmt: skip
@click.option("--partitions", "partition_count", default=6, show_default=True,
              type=click.IntRange(2, 1000), help="Partitions of the topics it makes.")  # fmt: skip
@click.option("--producers", default="1,8,64", show_default=True,
              help="How many producers commit transactions at once: one row for each number.")  # fmt: skip
@click.option("--runs", "run_count", default=3, show_default=True, type=click.IntRange(1, 100),
              help="Runs of each; the median and the spread are shown.")  # fmt: skip
@output_option
def bench(load: str, bootstrap: str | None, region_count: int, output: str, producers: str,
          **numbers: Any) -> None:  # fmt: skip
    """Measure a broker: records per second in and out, latency of a lone record, transactions.

    It makes topics of its own and removes them. Client and broker share this machine's cores if the
    broker runs here: say so when you quote a figure.
    """
    plan = Plan(producer_counts=_producer_counts(producers), **numbers)
    loads = LOADS if load == "all" else (load,)
    try:
        with _broker(bootstrap, region_count) as stage:
            rows = [row.as_dict() for name in loads for row in _measured(name, stage, plan)]
            address = stage.bootstrap
    except BenchFailed as error:
        fail(str(error))
    if output == "json":
        print_json({
            "bootstrap": address,
            "own_cluster_regions": None if bootstrap else region_count,
            "machine": _machine(),
            "settings": {"seconds": plan.seconds, "size_bytes": plan.size_bytes,
                         "partitions": plan.partition_count, "runs": plan.run_count},
            "results": rows,
        })  # fmt: skip
    else:
        print_rows([_readable(row) for row in rows], output, title=f"{address}, {_machine_line()}")


def _producer_counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= _PRODUCERS_MAX for part in parts):
        fail(
            f"--producers {text!r} is no list of numbers from 1 to {_PRODUCERS_MAX}, such as 1,8,64",
            EXIT_USAGE,
        )
    return tuple(int(part) for part in parts)


@contextmanager
def _broker(bootstrap: str | None, region_count: int) -> Iterator[Any]:
    """Give the broker to measure, starting one if none is named."""
    from region_broker.cli.bench.stage import Stage
    from region_broker.cli.local_cluster import ClusterError, LocalCluster
    from region_broker.ports.chance import SystemChance

    mark = SystemChance().uuid().hex[:8]
    if bootstrap:
        yield Stage(bootstrap=bootstrap, pids=(), mark=mark)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        _say(f"starting a cluster of {region_count} in {folder}")
        try:
            cluster = stack.enter_context(
                LocalCluster.open(
                    folder.resolve(), region_count=region_count, port=0,
                    new_cluster_id=SystemChance().uuid(),
                )
            )  # fmt: skip
            cluster.start()
        except ClusterError as error:
            raise BenchFailed(str(error)) from error
        home = cluster.plan.regions[0]
        yield Stage(bootstrap=home.bootstrap, pids=tuple(cluster.pids(home.name)), mark=mark)


# --- the loads -----------------------------------------------------------------------------------


def _measured(load: str, stage: Any, plan: Plan) -> Iterator[Row]:
    match load:
        case "produce":
            yield _produce(stage, plan)
            yield _lone(stage, plan)
        case "consume":
            yield _consume(stage, plan)
        case _:
            for producer_count in plan.producer_counts:
                yield _transactions(stage, plan, producer_count)


def _produce(stage: Any, plan: Plan) -> Row:
    from region_broker.cli.bench.streams import produce_run

    def run(number: int) -> Run:
        # A topic for each run: the disk never holds more than one run's records.
        with stage.topic(f"produce-{number}", plan.partition_count) as topic:
            return produce_run(stage, plan, topic)

    return _row("produce", "msg/s", 1, plan, run)


def _lone(stage: Any, plan: Plan) -> Row:
    from region_broker.cli.bench.streams import lone_run

    with stage.topic("lone", 1) as topic:
        return _row(
            "produce, one at a time", "msg/s", 1, plan, lambda _: lone_run(stage, plan, topic)
        )


def _consume(stage: Any, plan: Plan) -> Row:
    from region_broker.cli.bench.streams import consume_run, fill

    with stage.topic("consume", plan.partition_count) as topic:
        record_count = fill(stage, plan, topic)
        _say(f"consume: {record_count:,} records to read")
        return _row(
            "consume", "msg/s", 1, plan, lambda _: consume_run(stage, plan, topic, record_count)
        )


def _transactions(stage: Any, plan: Plan, producer_count: int) -> Row:
    from region_broker.cli.bench.transactions import transactions_run

    with stage.topic(f"txn-{producer_count}", plan.partition_count) as topic:
        return _row(
            "transactions", "txn/s", producer_count, plan,
            lambda _: transactions_run(stage, plan, topic, producer_count),
        )  # fmt: skip


def _row(what: str, unit: str, producers: int, plan: Plan, run: Callable[[int], Run]) -> Row:
    runs = []
    for number in range(1, plan.run_count + 1):
        done = run(number)
        runs.append(done)
        who = f" ({producers} producers)" if producers > 1 else ""
        _say(f"{what}{who}, run {number} of {plan.run_count}: {done.per_s:,.0f} {unit}")
    return Row(what=what, unit=unit, producers=producers, size_bytes=plan.size_bytes, runs=runs)


# --- printing ------------------------------------------------------------------------------------


def _say(text: str) -> None:
    click.echo(text, err=True)


def _readable(row: Mapping[str, Any]) -> dict[str, str]:
    return {key: _number(value) for key, value in row.items() if key != "runs"}


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return str(value)


def _machine() -> dict[str, Any]:
    import confluent_kafka

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before_1m": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def _machine_line() -> str:
    return f"{os.cpu_count()} cores shared with the client, {_cpu_model()}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
