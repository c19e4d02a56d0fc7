"""`tidemark bench`: how fast a broker is, on this machine, now.

Without --bootstrap a cluster of our own is started in a temporary folder and removed at the end. Two brokers are
measured in alternation, run by run, so that what the machine does meanwhile meets both. Any broker that speaks Kafka's
protocol is measured in the same way: by confluent-kafka alone.
"""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from region_broker.cli.bench.figures import BenchFailed, Plan, Row, Run, ratios
from region_broker.cli.output import EXIT_USAGE, fail, output_option, print_json, print_rows
from region_broker.config.relations import NODE_COUNT_MAX

if TYPE_CHECKING:
    from region_broker.cli.bench.stage import Stage

LOADS: Final = ("produce", "requests", "consume", "latency", "transactions")
PAIR_LOADS: Final = ("catch-up", "idle")
"""These stop and start a mirror of their own, or count what two regions use: only when named."""
SIZE: Final = "size"
"""This one stops, starts and kills all nodes of its own: only when named, and its figures are no rates."""
_PRODUCERS_MAX: Final = 256
_TOPICS_MAX: Final = 10_000


@click.command(
    epilog="""\b
Examples:
  tidemark bench                                        all, on a region of its own
  tidemark bench transactions --producers 1,8 --runs 5
  tidemark bench requests --connections 1,8,64          one small request at a time on each
  tidemark bench produce --size 1024 --bootstrap 127.0.0.1:9092 -o json
  tidemark bench latency --regions 2 --rate 500         and how soon a mirror shows it
  tidemark bench catch-up --regions 2 --size 1024       a mirror that was away
  tidemark bench idle --regions 2 --seconds 20          CPU of both regions when nothing is written
  tidemark bench size --nodes 3 --partitions 1000       what so many partitions cost: idle, start, loss of the leader
  tidemark bench --against 127.0.0.1:9192 --html bench.html
"""
)
@click.argument("load", type=click.Choice([*LOADS, *PAIR_LOADS, SIZE, "all"]), default="all")
@click.option("--bootstrap", envvar="TIDEMARK_BOOTSTRAP",
              help="A Kafka address to measure; without it a cluster is started here.")  # fmt: skip
@click.option("--regions", "region_count", default=1, show_default=True,
              type=click.IntRange(1, 8), help="Regions of the cluster that is started.")  # fmt: skip
@click.option("--nodes", "node_count", default=1, show_default=True,
              type=click.IntRange(1, NODE_COUNT_MAX), help="Nodes of each region of that cluster.")  # fmt: skip
@click.option("--against", metavar="HOST:PORT",
              help="Another broker that speaks Kafka's protocol: measured in alternation, with ratios.")  # fmt: skip
@click.option("--against-pid", "against_pids", multiple=True, type=click.IntRange(1),
              help="The other broker's process, if it runs here: its CPU and memory are shown, too.")  # fmt: skip
@click.option("--rate", "rate_per_s", default=500.0, show_default=True, type=click.FloatRange(1, 1e6),
              help="Records per second of the latency load; each is timed from when it is due.")  # fmt: skip
@click.option("--megabytes", default=500.0, show_default=True, type=click.FloatRange(1, 1e6),
              help="What the mirror of the catch-up load has to copy.")  # fmt: skip
@click.option("--batch-bytes", default=1_000_000, show_default=True, type=click.IntRange(1, 1_000_000),
              help="Largest batch that the producer of the streams builds (Java's default: 16384).")  # fmt: skip
@click.option("--topics", default="1,2000", show_default=True,
              help="How many topics there are while idle: two rows for each number.")  # fmt: skip
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a report with charts into one file, too.")  # fmt: skip
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1, 600),
              help="Measured length of one run; a warm-up comes before it.")  # fmt: skip
@click.option("--size", "size_bytes", default=100, show_default=True,
              type=click.IntRange(1, 900_000), help="Bytes of one record.")  # fmt: skip
@click.option("--partitions", "partition_count", default=6, show_default=True,
              type=click.IntRange(2, 1000), help="Partitions of the topics it makes.")  # fmt: skip
@click.option("--producers", default="1,8,64", show_default=True,
              help="How many producers commit transactions at once: one row for each number.")  # fmt: skip
@click.option("--connections", default="1,8,64", show_default=True,
              help="How many raw connections send small requests at once: one row for each number.")  # fmt: skip
@click.option("--runs", "run_count", default=3, show_default=True, type=click.IntRange(1, 100),
              help="Runs of each; the median and the spread are shown.")  # fmt: skip
@output_option
def bench(load: str, bootstrap: str | None, against: str | None, against_pids: tuple[int, ...],
          region_count: int, node_count: int, output: str, html_path: Path | None, producers: str,
          connections: str, topics: str, **numbers: Any) -> None:  # fmt: skip
    """Measure a broker: records per second in and out, latencies, transactions.

    It makes topics of its own and removes them. Client and broker share this machine's cores if the
    broker runs here: say so when you quote a figure.
    """
    plan = Plan(
        producer_counts=_counts("--producers", producers, _PRODUCERS_MAX),
        connection_counts=_counts("--connections", connections, _PRODUCERS_MAX),
        topic_counts=_counts("--topics", topics, _TOPICS_MAX),
        **numbers,
    )
    loads = LOADS if load == "all" else (load,)
    counts = (region_count, node_count)
    if load == SIZE:
        if bootstrap or against:
            fail(
                "size stops and kills the nodes that it measures: give no --bootstrap or --against",
                EXIT_USAGE,
            )
        _size(plan, counts, output)
        return
    try:
        with _broker(bootstrap, counts) as stage:
            stages = [stage, *_other(against, against_pids, stage.mark)]
            rows = [row for name in loads for row in _measured(name, stages, plan)]
    except BenchFailed as error:
        fail(str(error))
    compared = _ratios(rows) if against else []
    document = {
        "bootstrap": stage.bootstrap,
        "against": against,
        "own_cluster_regions": None if bootstrap else region_count,
        "machine": _machine(),
        "settings": {"seconds": plan.seconds, "size_bytes": plan.size_bytes, "runs": plan.run_count,
                     "partitions": plan.partition_count, "rate_per_s": plan.rate_per_s, "batch_bytes": plan.batch_bytes,
                     "megabytes": plan.megabytes},
        "results": [row.as_dict() for row in rows],
        "ratios": compared,
    }  # fmt: skip
    if html_path is not None:
        from region_broker.cli.bench.report import render

        html_path.write_text(render(document, rows), encoding="utf-8")
        _say(f"report: {html_path}")
    if output == "json":
        print_json(document)
        return
    title = f"{stage.bootstrap}, {_machine_line()}"
    print_rows([_readable(row.as_dict(), against) for row in rows], output, title=title)
    if compared:
        title = (
            f"{stage.name} over {against}: rates above 1 and all others below 1 are in our favour"
        )
        print_rows([_readable(row, against) for row in compared], output, title=title)


def _other(against: str | None, pids: tuple[int, ...], mark: str) -> list["Stage"]:
    from region_broker.cli.bench.stage import Stage

    if not against:
        if pids:
            fail("--against-pid says whose process --against is: give both", EXIT_USAGE)
        return []
    return [Stage(bootstrap=against, pids=pids, mark=f"{mark}-against", name=against)]


def _counts(option: str, text: str, highest: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= highest for part in parts):
        fail(
            f"{option} {text!r} is no list of numbers from 1 to {highest}, such as 1,8,64",
            EXIT_USAGE,
        )
    return tuple(int(part) for part in parts)


@contextmanager
def _broker(bootstrap: str | None, counts: tuple[int, int]) -> Iterator["Stage"]:
    """Give the broker to measure, starting one if none is named; `counts`: of its regions, and of the nodes of each."""
    from region_broker.cli.bench.stage import Stage
    from region_broker.ports.system.chance import SystemChance
    from region_broker.workbench.cluster_plan import ClusterError
    from region_broker.workbench.local_cluster import LocalCluster

    mark = SystemChance().uuid().hex[:8]
    if bootstrap:
        yield Stage(bootstrap=bootstrap, pids=(), mark=mark, name=bootstrap)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        region_count, node_count = counts
        nodes = f" with {node_count} nodes each" if node_count > 1 else ""
        _say(f"starting a cluster of {region_count}{nodes} in {folder}")
        try:
            cluster = stack.enter_context(
                LocalCluster.open(
                    folder.resolve(), region_count=region_count, port=0, node_count=node_count,
                    new_cluster_id=SystemChance().uuid(),
                )
            )  # fmt: skip
            cluster.start()
        except ClusterError as error:
            raise BenchFailed(str(error)) from error
        primary, *mirrors = cluster.plan.regions
        yield Stage(
            bootstrap=primary.bootstrap, pids=tuple(cluster.pids(primary.name)), mark=mark, name="tidemark",
            mirror=mirrors[0].bootstrap if mirrors else "", cluster=cluster,
        )  # fmt: skip


def _size(plan: Plan, counts: tuple[int, int], output: str) -> None:
    """Measure a cluster of our own, and print its figures."""
    from region_broker.cli.bench.size import SizeBench, SizePlan

    asked = SizePlan(
        partition_count=plan.partition_count, seconds=plan.seconds, run_count=plan.run_count
    )
    try:
        with _broker(None, counts) as stage:
            assert stage.cluster is not None, "it was started here"
            rows = [
                _said(each.as_dict()) for each in SizeBench(stage.cluster, asked, _say).figures()
            ]
    except BenchFailed as error:
        fail(str(error))
    if output == "json":
        settings = {
            "partitions": plan.partition_count,
            "regions": counts[0],
            "nodes": counts[1],
            "seconds": plan.seconds,
        }
        print_json({"machine": _machine(), "settings": settings, "figures": rows})
        return
    print_rows(
        [{key: _number(value) for key, value in row.items()} for row in rows],
        output,
        title=_machine_line(),
    )


def _said(row: dict[str, Any]) -> dict[str, Any]:
    _say("  ".join(_number(value) for value in row.values()))
    return row


# --- the loads -----------------------------------------------------------------------------------

Measure = Callable[[int], Sequence[Run]]
"""One run, by its number: a `Run` for each thing that it measures."""


def _measured(load: str, stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    match load:
        case "produce":
            yield from _produce(stages, plan)
            yield from _lone(stages, plan)
        case "requests":
            for connection_count in plan.connection_counts:
                yield from _requests(stages, plan, connection_count)
        case "consume":
            yield from _consume(stages, plan)
        case "latency":
            yield from _latency(stages, plan)
        case "catch-up":
            yield from _catch_up(stages, plan)
        case "idle":
            yield from _idle(stages, plan)
        case _:
            for producer_count in plan.producer_counts:
                yield from _transactions(stages, plan, producer_count)


def _produce(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.streams import produce_run

    def measure(stage: "Stage") -> Measure:
        def run(number: int) -> Sequence[Run]:
            # A topic for each run: the disk never holds more than one run's records.
            with stage.topic(f"produce-{number}", plan.partition_count) as topic:
                return (produce_run(stage, plan, topic),)

        return run

    yield from _rows(("produce",), "msg/s", 1, plan, {stage: measure(stage) for stage in stages})


def _lone(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.streams import lone_run

    def measure(stage: "Stage", topic: str) -> Measure:
        return lambda _: (lone_run(stage, plan, topic),)

    with _topics(stages, "lone", 1) as topics:
        runs = {stage: measure(stage, topic) for stage, topic in topics}
        yield from _rows(("produce, one at a time",), "msg/s", 1, plan, runs)


def _requests(stages: Sequence["Stage"], plan: Plan, connection_count: int) -> Iterator[Row]:
    from region_broker.cli.bench.requests import requests_run

    def measure(stage: "Stage", topic: str) -> Measure:
        return lambda _: (requests_run(stage, plan, topic, connection_count),)

    with _topics(stages, f"requests-{connection_count}", plan.partition_count) as topics:
        runs = {stage: measure(stage, topic) for stage, topic in topics}
        yield from _rows(("produce requests",), "msg/s", connection_count, plan, runs)


def _consume(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.streams import consume_run, fill

    def measure(stage: "Stage", topic: str) -> Measure:
        record_count = fill(stage, plan, topic)
        _say(f"consume: {record_count:,} records to read from {stage.name}")
        return lambda _: (consume_run(stage, plan, topic, record_count),)

    with _topics(stages, "consume", plan.partition_count) as topics:
        runs = {stage: measure(stage, topic) for stage, topic in topics}
        yield from _rows(("consume",), "msg/s", 1, plan, runs)


def _latency(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.open_loop import TXN_RECORDS, open_loop_runs

    def measure(stage: "Stage", topic: str, reader: str, txn_records: int) -> Measure:
        return lambda _: open_loop_runs(stage, plan, topic, reader, txn_records)

    for txn_records in (0, TXN_RECORDS):
        rate = f"at {plan.rate_per_s:g} msg/s"
        if txn_records:
            rate += f", transactions of {txn_records}"
        with _topics(stages, "latency", plan.partition_count) as topics:
            runs = {s: measure(s, topic, s.bootstrap, txn_records) for s, topic in topics}
            yield from _rows((f"acknowledged {rate}", f"end to end {rate}"), "msg/s", 1, plan, runs)
            mirrored = {
                s: measure(s, topic, s.mirror, txn_records) for s, topic in topics if s.mirror
            }
            if mirrored:
                whats = (f"acknowledged {rate}, mirror read", f"end to end on the mirror {rate}")
                yield from _rows(whats, "msg/s", 1, plan, mirrored)


def _catch_up(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.mirror import catch_up_runs

    def measure(stage: "Stage") -> Measure:
        return lambda number: catch_up_runs(stage, plan, number)

    whats = ("catch-up, cost at the primary", "catch-up, cost at the mirror")
    yield from _rows(whats, "msg/s", 1, plan, {stages[0]: measure(stages[0])})


def _idle(stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    from region_broker.cli.bench.mirror import idle_runs

    for topic_count in plan.topic_counts:
        runs = idle_runs(stages[0], plan, topic_count)
        for region, found in zip(("primary", "mirror"), zip(*runs, strict=True), strict=True):
            yield Row(
                broker=stages[0].name, what=f"idle, {topic_count} topics, {region}",
                unit="% of a core", producers=0, size_bytes=0, runs=found,
            )  # fmt: skip


def _transactions(stages: Sequence["Stage"], plan: Plan, producer_count: int) -> Iterator[Row]:
    from region_broker.cli.bench.transactions import transactions_run

    def measure(stage: "Stage", topic: str) -> Measure:
        return lambda _: (transactions_run(stage, plan, topic, producer_count),)

    with _topics(stages, f"txn-{producer_count}", plan.partition_count) as topics:
        runs = {stage: measure(stage, topic) for stage, topic in topics}
        yield from _rows(("transactions",), "txn/s", producer_count, plan, runs)


@contextmanager
def _topics(
    stages: Sequence["Stage"], purpose: str, partition_count: int
) -> Iterator[list[tuple["Stage", str]]]:
    """Make a topic at each broker."""
    with ExitStack() as stack:
        yield [
            (stage, stack.enter_context(stage.topic(purpose, partition_count))) for stage in stages
        ]


def _rows(
    whats: Sequence[str], unit: str, producers: int, plan: Plan, measures: Mapping["Stage", Measure]
) -> Iterator[Row]:
    """Run in alternation, broker after broker; yield a row for each thing and broker."""
    runs: dict[Stage, list[Sequence[Run]]] = {stage: [] for stage in measures}
    for number in range(1, plan.run_count + 1):
        for stage, measure in measures.items():
            done = measure(number)
            runs[stage].append(done)
            who = f" ({producers} producers)" if producers > 1 else ""
            at = f" at {stage.name}" if len(measures) > 1 else ""
            rate = f"{done[-1].per_s:,.0f} {unit}"
            _say(f"{whats[-1]}{who}{at}, run {number} of {plan.run_count}: {rate}")
    for index, what in enumerate(whats):
        for stage in measures:
            yield Row(
                broker=stage.name, what=what, unit=unit, producers=producers,
                size_bytes=plan.size_bytes, runs=[done[index] for done in runs[stage]],
            )  # fmt: skip


def _ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return ours over theirs for each thing that both brokers were measured in."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.what, row.producers), []).append(row)
    return [ratios(*pair) for pair in found.values() if len(pair) == 2]


# --- printing ------------------------------------------------------------------------------------


def _say(text: str) -> None:
    click.echo(text, err=True)


def _readable(row: Mapping[str, Any], against: str | None) -> dict[str, str]:
    hidden = {"runs"} if against else {"runs", "broker"}
    return {key: _number(value) for key, value in row.items() if key not in hidden}


def _number(value: object) -> str:
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
