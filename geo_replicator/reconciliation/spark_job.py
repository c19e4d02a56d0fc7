"""The checks in Spark: Spark moves and groups rows, the functions that judge are those of the local engine.

One scan of both regions feeds everything. Its range digests are compared by one aggregation (the XOR of both
sides is 0 and the counts cancel where a range is equal); only ranges that differ are read again as headers; each
partition is then judged as one group, and each bucket of producer ids as one group.

Only the DataFrame API is used (no RDD, no JVM call), so a remote session works too. What comes back to the driver is
small: a row per segment, differing ranges, findings.

Not here: the checks (`diff`, `transactions`), reading (`spark_source`), whether this machine has Java (the CLI).
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from geo_replicator.reconciliation.diff import PartitionResult, check_partition
from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact
from geo_replicator.reconciliation.evidence.rows import (
    EVENT_DTYPE,
    EVENTS,
    LEDGER,
    RANGE,
    SEGMENT,
    EvidenceRow,
    SegmentEvidence,
)
from geo_replicator.reconciliation.findings import Side
from geo_replicator.reconciliation.job import (
    TRANSACTIONS,
    VERIFY,
    Place,
    combine,
    empty_partitions,
    extents_of,
    only_coverage,
    ranges_by_partition,
    segments_holding,
)
from geo_replicator.reconciliation.plan import Plan, pack
from geo_replicator.reconciliation.report import EngineResult
from geo_replicator.reconciliation.segments.batch_table import BATCH_DTYPE, BatchTable, empty_table
from geo_replicator.reconciliation.spark_source import (
    ARROW_SCHEMA,
    FORMAT,
    HEADERS,
    SCAN,
    TidemarkLogSource,
    Work,
)
from geo_replicator.reconciliation.transactions.instances import Extents
from geo_replicator.reconciliation.transactions.judging import TransactionResult, check_transactions

_RESULT_DDL: Final = "payload binary"
_RESULT_SCHEMA: Final = pa.schema([("payload", pa.binary())])
_LOOPBACK: Final = "127.0.0.1"
_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
"""
_LOCAL_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
}
"""For a master on this machine: nothing listens on the network, and start-up counts more than peak speed."""


@contextmanager
def spark_session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session on `master` and stop it afterwards; the workers find this package and this Python."""
    is_local = master.startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="tidemark-spark-") as folder:
        builder = SparkSession.builder.master(master).appName("tidemark reconcile")
        settings = _local_settings(Path(folder)) if is_local else {}
        for key, value in {**settings, **(conf or {})}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def _local_settings(folder: Path) -> dict[str, str]:
    """Return the settings for a master on this machine, and tell its workers where this package is."""
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    root = str(Path(__file__).parents[2])
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *others]))
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="utf-8")
    return {
        **_LOCAL_CONF,
        "spark.driver.extraJavaOptions": f"{_JVM_OPTIONS} -Dlog4j2.configurationFile={logging}",
        "spark.local.dir": str(folder),
    }


class SparkEngine:
    """Runs the checks of a plan in a Spark session (see `job.Engine`).

    `work_dir` holds the plan while the job runs; it must be readable on Spark's workers. A temporary folder of
    this machine does for local masters.
    """

    def __init__(
        self, session: SparkSession, *, parallelism: int | None = None, work_dir: Path | None = None
    ) -> None:
        """Use `session`; `parallelism` is that of the session where it is not given."""
        self._session = session
        self._work_dir = work_dir
        self.name = f"spark {session.version}"
        self.parallelism = parallelism or max(1, session.sparkContext.defaultParallelism)
        session.dataSource.register(TidemarkLogSource)
        session.conf.set("spark.sql.shuffle.partitions", str(self.parallelism))
        session.conf.set("spark.sql.adaptive.enabled", "false")

    def run(self, plan: Plan, jobs: Sequence[str]) -> EngineResult:
        """See `Engine`."""
        if not plan.tasks:
            return combine(self.name, empty_partitions(plan, []) if VERIFY in jobs else [], [])
        with tempfile.TemporaryDirectory(
            prefix="tidemark-reconcile-", dir=self._work_dir
        ) as folder:
            scan = self._load(Path(folder) / "scan", Work(plan=plan), SCAN).persist()
            try:
                return self._check(plan, jobs, scan, Path(folder))
            finally:
                scan.unpersist()

    def _check(
        self, plan: Plan, jobs: Sequence[str], scan: DataFrame, folder: Path
    ) -> EngineResult:
        segments = _collect_rows(scan.where(F.col("kind") == SEGMENT).drop("payload"))
        extents = extents_of(plan, segments)
        rows = scan.where(F.col("kind") == SEGMENT)
        if VERIFY in jobs:
            headers = self._headers(plan, _differing(scan, plan, extents), segments, folder)
            rows = rows if headers is None else rows.unionByName(headers)
        judged = rows.groupBy("topic", "partition").applyInArrow(
            _partition_judge(plan), _RESULT_DDL
        )
        parts = [msgspec.msgpack.decode(p, type=PartitionResult) for p in _payloads(judged)]
        parts += empty_partitions(plan, segments)
        checked: list[TransactionResult] = []
        if TRANSACTIONS in jobs:
            buckets = scan.where(F.col("kind").isin(EVENTS, LEDGER)).groupBy("key")
            shown = buckets.applyInArrow(_bucket_judge(plan, extents), _RESULT_DDL)
            checked = [msgspec.msgpack.decode(p, type=TransactionResult) for p in _payloads(shown)]
        return combine(self.name, parts if VERIFY in jobs else only_coverage(parts), checked)

    def _load(self, path: Path, work: Work, mode: str) -> DataFrame:
        path.write_bytes(msgspec.msgpack.encode(work))
        return (
            self._session.read.format(FORMAT).option("plan", str(path)).option("mode", mode).load()
        )

    def _headers(
        self,
        plan: Plan,
        differing: Mapping[Place, Sequence[int]],
        segments: Sequence[EvidenceRow],
        folder: Path,
    ) -> DataFrame | None:
        specs = segments_holding(plan, differing, segments)
        if not specs:
            return None
        tasks = pack(specs, parallelism=self.parallelism)
        ranges = {f"{topic}/{number}": list(found) for (topic, number), found in differing.items()}
        work = Work(plan=msgspec.structs.replace(plan, tasks=tasks), ranges=ranges)
        return self._load(folder / "headers", work, HEADERS)


def _collect_rows(frame: DataFrame) -> list[EvidenceRow]:
    return [EvidenceRow(**row.asDict()) for row in frame.collect()]


def _payloads(frame: DataFrame) -> list[bytes]:
    return [bytes(row.payload) for row in frame.collect()]


def _differing(scan: DataFrame, plan: Plan, extents: Extents) -> dict[Place, list[int]]:
    """Return the ranges to compare batch by batch, of all partitions (spark.md L1)."""
    signed = F.when(F.col("side") == Side.SOURCE.value, F.col("batches")).otherwise(
        -F.col("batches")
    )
    unequal = (
        scan.where(F.col("kind") == RANGE)
        .groupBy("topic", "partition", "key")
        .agg(
            F.sum(signed).alias("excess"), F.bit_xor("x1").alias("x1"), F.bit_xor("x2").alias("x2")
        )
        .where("excess <> 0 or x1 <> 0 or x2 <> 0")
    )
    differing: dict[Place, list[int]] = {}
    for row in unequal.select("topic", "partition", "key").collect():
        differing.setdefault((row.topic, row.partition), []).append(row.key)
    return ranges_by_partition(plan, extents, differing)


def _partition_judge(plan: Plan) -> Callable[[pa.Table], pa.Table]:
    partitions = plan.partitions

    def judge(table: pa.Table) -> pa.Table:
        rows = _rows_of(table)
        part = partitions[f"{rows[0].topic}/{rows[0].partition}"]
        evidence = [
            msgspec.msgpack.decode(row.payload, type=SegmentEvidence)
            for row in rows
            if row.kind == SEGMENT
        ]
        headers = (_headers_of(rows, side) for side in Side)
        return _result(check_partition(part, evidence, *headers))

    return judge


def _headers_of(rows: list[EvidenceRow], side: Side) -> BatchTable:
    chosen = sorted(
        (row for row in rows if row.kind == HEADERS and row.side == side.value),
        key=lambda row: row.key,
    )
    tables = [np.frombuffer(row.payload, BATCH_DTYPE) for row in chosen]
    return np.concatenate(tables) if tables else empty_table()


def _bucket_judge(plan: Plan, extents: Extents) -> Callable[[pa.Table], pa.Table]:
    # The tasks are not needed to judge, and travel with every task that judges.
    slim = msgspec.structs.replace(plan, tasks=[])

    def judge(table: pa.Table) -> pa.Table:
        rows = _rows_of(table)
        events = [np.frombuffer(row.payload, EVENT_DTYPE) for row in rows if row.kind == EVENTS]
        facts = [
            fact
            for row in rows
            if row.kind == LEDGER
            for fact in msgspec.msgpack.decode(row.payload, type=list[LedgerFact])
        ]
        return _result(check_transactions(slim, extents, events, facts))

    return judge


def _rows_of(table: pa.Table) -> list[EvidenceRow]:
    columns = [table.column(name).to_pylist() for name in ARROW_SCHEMA.names]
    return [EvidenceRow._make(values) for values in zip(*columns, strict=True)]


def _result(value: PartitionResult | TransactionResult) -> pa.Table:
    return pa.table({"payload": [msgspec.msgpack.encode(value)]}, schema=_RESULT_SCHEMA)
