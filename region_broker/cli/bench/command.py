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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from region_broker.cli.bench.figures import BenchFailed, Plan
from region_broker.cli.bench.loads import LOADS, PAIR_LOADS, compared, measured, say
from region_broker.cli.context.credentials import credential_options
from region_broker.cli.output import EXIT_USAGE, fail, output_option, print_json, print_rows
from region_broker.config.relations import NODE_COUNT_MAX

if TYPE_CHECKING:
    from region_broker.cli.bench.size import Figure
    from region_broker.cli.bench.stage import Stage
    from region_broker.workbench.local_cluster import LocalCluster

SIZE: Final = "size"
"""This one stops, starts and kills all nodes of its own: only when named, and its figures are no rates."""
GROW: Final = "grow"
"""This one adds a node to a region of its own: only when named."""
QUOTAS: Final = "quotas"
"""This one sets a quota on a region of its own: only when named."""
TLS: Final = "tls"
"""This one starts a node with two ports: only when named."""
_OWN: Final = {
    SIZE: "stops and kills the nodes that it measures",
    GROW: "adds a node to the region that it measures",
    QUOTAS: "sets quotas in the region that it measures",
    TLS: "measures two ports of a node that it starts",
}
_PRODUCERS_MAX: Final = 256
_TOPICS_MAX: Final = 10_000
_SIZE_BYTES_MAX: Final = 900_000
_PID_MAX: Final = 2**22


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
  tidemark bench grow --nodes 3 --partitions 300        what clients notice while a fourth node copies all
  tidemark bench quotas --rate 200                      what one client notices of another at full speed, with a quota and without
  tidemark bench tls --size 1024                        what TLS costs: one node, a port with it and a port without
  tidemark bench --against 127.0.0.1:9192 --html bench.html
  tidemark bench --nodes 3                              a region of three nodes, three copies of each topic
  tidemark bench --nodes 3 --against 127.0.0.1:9192 --against-pid 4711,4712,4713
"""
)
@click.argument(
    "load", type=click.Choice([*LOADS, *PAIR_LOADS, SIZE, GROW, QUOTAS, TLS, "all"]), default="all"
)
@click.option("--bootstrap", envvar="TIDEMARK_BOOTSTRAP",
              help="A Kafka address to measure; without it a cluster is started here.")  # fmt: skip
@click.option("--regions", "region_count", default=1, show_default=True,
              type=click.IntRange(1, 8), help="Regions of the cluster that is started.")  # fmt: skip
@click.option("--nodes", "node_count", default=1, show_default=True, type=click.IntRange(1, NODE_COUNT_MAX),
              help="Nodes of each region that is started, and copies of each topic; as many must answer at --bootstrap and"
                   " --against.")  # fmt: skip
@credential_options
@click.option("--against", metavar="HOST:PORT",
              help="Another broker that speaks Kafka's protocol: measured in alternation, with ratios.")  # fmt: skip
@click.option("--against-pid", metavar="PID,...",
              help="The other broker's processes, if they run here, in the order of its node ids: CPU and memory are shown, too.")  # fmt: skip
@click.option("--rate", "rate_per_s", default=500.0, show_default=True, type=click.FloatRange(1, 1e6),
              help="Records per second of the loads latency, grow and quotas; each is timed from when it is due.")  # fmt: skip
@click.option("--megabytes", default=500.0, show_default=True, type=click.FloatRange(1, 1e6),
              help="What the mirror of the catch-up load, or the node that is added, has to copy.")  # fmt: skip
@click.option("--batch-bytes", default=1_000_000, show_default=True, type=click.IntRange(1, 1_000_000),
              help="Largest batch that the producer of the streams builds (Java's default: 16384).")  # fmt: skip
@click.option("--topics", default="1,2000", show_default=True,
              help="How many topics there are while idle: two rows for each number.")  # fmt: skip
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a report with charts into one file, too.")  # fmt: skip
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1, 600),
              help="Measured length of one run; a warm-up comes before it.")  # fmt: skip
@click.option("--size", "sizes", metavar="BYTES,...", show_default="100; with --nodes 2 or more 100,1000",
              help="Bytes of one record; of several numbers each is for a stream of records, the first for all other loads.")  # fmt: skip
@click.option("--partitions", "partition_count", default=6, show_default=True,
              type=click.IntRange(2, 1000), help="Partitions of the topics it makes.")  # fmt: skip
@click.option("--producers", default="1,8,64", show_default=True,
              help="How many producers commit transactions at once: one row for each number.")  # fmt: skip
@click.option("--connections", default="1,8,64", show_default=True,
              help="How many raw connections send small requests at once: one row for each number.")  # fmt: skip
@click.option("--runs", "run_count", default=3, show_default=True, type=click.IntRange(1, 100),
              help="Runs of each; the median and the spread are shown.")  # fmt: skip
@output_option
def bench(load: str, bootstrap: str | None, against: str | None, against_pid: str | None, region_count: int,
          node_count: int, output: str, html_path: Path | None, sizes: str | None, producers: str,
          connections: str, topics: str, **numbers: Any) -> None:  # fmt: skip
    """Measure a broker: records per second in and out, latencies, transactions.

    It makes topics of its own and removes them. Client and broker share this machine's cores if the
    broker runs here: say so when you quote a figure.
    """
    plan = Plan(
        sizes_bytes=_counts(
            "--size", sizes or ("100" if node_count == 1 else "100,1000"), _SIZE_BYTES_MAX
        ),
        producer_counts=_counts("--producers", producers, _PRODUCERS_MAX),
        connection_counts=_counts("--connections", connections, _PRODUCERS_MAX),
        topic_counts=_counts("--topics", topics, _TOPICS_MAX),
        **numbers,
    )
    loads: Sequence[str] = LOADS if load == "all" else (load,)
    if load in _OWN:
        _check_own(load, bool(bootstrap or against), (region_count, node_count))
    if load in _OWN and load != TLS:
        _own(load, plan, region_count, node_count, output)
        return
    pids = _counts("--against-pid", against_pid, _PID_MAX) if against_pid else ()
    try:
        others = _other(against, pids, node_count)
        with ExitStack() as held:
            if load == TLS:
                stages, loads, against = _two_ports(held)
            else:
                stage = held.enter_context(_broker(bootstrap, region_count, node_count))
                stages = [
                    stage, *(replace(other, mark=f"{stage.mark}-against") for other in others)
                ]  # fmt: skip
            rows = [row for name in loads for row in measured(name, stages, plan)]
    except BenchFailed as error:
        fail(str(error))
    ratios = compared(rows) if against else []
    document = {
        "bootstrap": stages[0].bootstrap,
        "against": against,
        "own_cluster_regions": None if bootstrap else region_count,
        "nodes": node_count,
        "machine": _machine(),
        "settings": {"seconds": plan.seconds, "size_bytes": plan.size_bytes, "sizes_bytes": plan.sizes_bytes, "runs": plan.run_count,
                     "partitions": plan.partition_count, "rate_per_s": plan.rate_per_s, "batch_bytes": plan.batch_bytes,
                     "megabytes": plan.megabytes},
        "results": [row.as_dict() for row in rows],
        "ratios": ratios,
    }  # fmt: skip
    if html_path is not None:
        from region_broker.cli.bench.report import render

        html_path.write_text(render(document, rows), encoding="utf-8")
        say(f"report: {html_path}")
    if output == "json":
        print_json(document)
        return
    title = f"{stages[0].bootstrap}, {_machine_line()}"
    print_rows([_readable(row.as_dict(), against) for row in rows], output, title=title)
    nodes = [_readable(node, None) for row in rows for node in _node_rows(row.as_dict())]
    if nodes:
        print_rows(
            nodes, output, title="by node: who leads partitions of the topic, and who follows"
        )
    if ratios:
        title = f"{stages[0].name} over {against}: rates above 1 and all others below 1 are in our favour"
        print_rows([_readable(row, against) for row in ratios], output, title=title)


def _check_own(load: str, is_elsewhere: bool, counts: tuple[int, int]) -> None:
    if is_elsewhere:
        fail(f"{load} {_OWN[load]}: give no --bootstrap or --against", EXIT_USAGE)
    if load == TLS and counts != (1, 1):
        fail(f"{load} {_OWN[load]}: give no --regions or --nodes", EXIT_USAGE)


def _two_ports(held: ExitStack) -> tuple[list["Stage"], tuple[str, ...], str]:
    """Start a node with TLS at one port and without at another; return both, what to measure, and the second one's name."""
    from region_broker.cli.bench import tls

    told: list[tls.TwoPorts] = []
    stage = held.enter_context(
        _broker(None, 1, 1, lambda cluster: told.append(tls.TwoPorts(cluster, held)))
    )
    return told[0].stages(stage), tls.LOADS, tls.PLAIN


def _own(load: str, plan: Plan, region_count: int, node_count: int, output: str) -> None:
    """Measure a cluster of our own with which we do as we like, and print its figures."""
    settings = {
        "partitions": plan.partition_count,
        "regions": region_count,
        "nodes": node_count,
        "seconds": plan.seconds,
    }
    if load == QUOTAS:
        settings |= {"runs": plan.run_count, "size_bytes": plan.size_bytes, "rate_per_s": plan.rate_per_s}  # fmt: skip
    if load == GROW:
        settings |= {"megabytes": plan.megabytes, "size_bytes": plan.size_bytes, "rate_per_s": plan.rate_per_s}  # fmt: skip
    try:
        with _broker(None, region_count, node_count) as stage:
            assert stage.cluster is not None, "it was started here"
            rows = [_said(each.as_dict()) for each in _figures(load, stage.cluster, plan)]
    except BenchFailed as error:
        fail(str(error))
    if output == "json":
        print_json({"machine": _machine(), "settings": settings, "figures": rows})
        return
    print_rows(
        [{key: _number(value) for key, value in row.items()} for row in rows],
        output,
        title=_machine_line(),
    )


def _figures(load: str, cluster: "LocalCluster", plan: Plan) -> Iterator["Figure"]:
    from region_broker.cli.bench.grow import GrowBench, GrowPlan
    from region_broker.cli.bench.quotas import QuotaBench
    from region_broker.cli.bench.size import SizeBench, SizePlan

    count = plan.partition_count
    growth = GrowPlan(
        partition_count=count, megabytes=plan.megabytes, record_bytes=plan.size_bytes, rate_per_s=plan.rate_per_s,
        seconds=plan.seconds,
    )  # fmt: skip
    if load == QUOTAS:
        return QuotaBench(cluster, growth, plan.run_count, say).figures()
    if load == GROW:
        return GrowBench(cluster, growth, say).figures()
    asked = SizePlan(partition_count=count, seconds=plan.seconds, run_count=plan.run_count)
    return SizeBench(cluster, asked, say).figures()


def _said(row: dict[str, Any]) -> dict[str, Any]:
    say("  ".join(_number(value) for value in row.values()))
    return row


def _other(against: str | None, pids: tuple[int, ...], node_count: int) -> list["Stage"]:
    """Return the other broker, if one is named: it must answer before anything is started here."""
    from region_broker.cli.bench.stage import Stage, check

    if not against:
        if pids:
            fail("--against-pid says whose process --against is: give both", EXIT_USAGE)
        return []
    check(against, node_count, pids)
    return [Stage(bootstrap=against, pids=pids, mark="", name=against, replica_count=node_count)]


def _counts(option: str, text: str, highest: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= highest for part in parts):
        fail(
            f"{option} {text!r} is no list of numbers from 1 to {highest}, such as 1,8,64",
            EXIT_USAGE,
        )
    return tuple(int(part) for part in parts)


@contextmanager
def _broker(
    bootstrap: str | None,
    region_count: int,
    node_count: int,
    tell: "Callable[[LocalCluster], None] | None" = None,
) -> Iterator["Stage"]:
    """Give the broker to measure, starting one if none is named; `tell` is given its cluster before that."""
    from region_broker.cli.bench.stage import Stage, check
    from region_broker.ports.system.chance import SystemChance
    from region_broker.workbench.cluster_plan import ClusterError
    from region_broker.workbench.local_cluster import LocalCluster

    mark = SystemChance().uuid().hex[:8]
    if bootstrap:
        if node_count > 1:
            check(bootstrap, node_count, ())
        yield Stage(
            bootstrap=bootstrap, pids=(), mark=mark, name=bootstrap, replica_count=node_count
        )
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        what = "1 region" if region_count == 1 else f"{region_count} regions"
        of = f" of {node_count} nodes" if node_count > 1 else ""
        say(f"starting {what}{of} in {folder}")
        try:
            cluster = stack.enter_context(
                LocalCluster.open(
                    folder.resolve(), region_count=region_count, node_count=node_count, port=0,
                    new_cluster_id=SystemChance().uuid(),
                )
            )  # fmt: skip
            if tell is not None:
                tell(cluster)
            cluster.start()
        except ClusterError as error:
            raise BenchFailed(str(error)) from error
        primary, *mirrors = cluster.plan.regions
        yield Stage(
            bootstrap=primary.bootstrap, pids=tuple(cluster.pids(primary.name)), mark=mark, name="tidemark",
            mirror=mirrors[0].bootstrap if mirrors else "", cluster=cluster, replica_count=node_count,
        )  # fmt: skip


# --- printing ------------------------------------------------------------------------------------


def _readable(row: Mapping[str, Any], against: str | None) -> dict[str, str]:
    hidden = {"runs", "nodes"} if against else {"runs", "nodes", "broker"}
    if not row.get("nodes"):
        hidden |= {"leader_cpu_us_each", "follower_cpu_us_each", "follower_cpu_ns_per_byte"}
    return {key: _number(value) for key, value in row.items() if key not in hidden}


def _node_rows(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    about = {"at": row["broker"], **{key: row[key] for key in ("what", "producers", "size_bytes")}}
    return [{**about, **node} for node in row["nodes"]]


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
