"""The loads of `tidemark bench`: which runs make which rows, in alternation over the brokers.

Two brokers are measured run by run in turn, so that what the machine does meanwhile meets both.
Not here: the runs themselves (`streams`, `requests`, `open_loop`, `transactions`, `mirror`), printing (`command`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from region_broker.cli.bench.figures import Plan, Row, Run, ratios

if TYPE_CHECKING:
    from region_broker.cli.bench.stage import Stage

LOADS: Final = ("produce", "requests", "consume", "latency", "transactions")
PAIR_LOADS: Final = ("catch-up", "idle")
"""These stop and start a mirror of their own, or count what two regions use: only when named."""

Measure = Callable[[int], Sequence[Run]]
"""One run, by its number: a `Run` for each thing that it measures."""


def measured(load: str, stages: Sequence["Stage"], plan: Plan) -> Iterator[Row]:
    """Measure one of the loads. Raises `BenchFailed`."""
    match load:
        case "produce":
            for size_bytes in plan.sizes_bytes:
                yield from _produce(stages, replace(plan, sizes_bytes=(size_bytes,)))
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
        say(f"consume: {record_count:,} records to read from {stage.name}")
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
            say(f"{whats[-1]}{who}{at}, run {number} of {plan.run_count}: {rate}")
    for index, what in enumerate(whats):
        for stage in measures:
            yield Row(
                broker=stage.name, what=what, unit=unit, producers=producers,
                size_bytes=plan.size_bytes, runs=[done[index] for done in runs[stage]],
            )  # fmt: skip


def compared(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return ours over theirs for each thing that both brokers were measured in."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.what, row.producers, row.size_bytes), []).append(row)
    return [ratios(*pair) for pair in found.values() if len(pair) == 2]


def say(text: str) -> None:
    """Tell of progress, on standard error."""
    click.echo(text, err=True)
