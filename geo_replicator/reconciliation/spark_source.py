"""The PySpark data source `tidemark_log`: segments in, rows of evidence out. A thin shell around `evidence`.

    spark.read.format("tidemark_log").option("plan", "/path/plan.msgpack").option("mode", "scan").load()

One input partition is one task of the plan: many segments of together about 1 GiB. It emits few rows (per range, per
segment, per bucket), never one per batch: rows cross to the JVM one by one, and the digest is computed where the bytes
are. Modes `scan` and `headers` give the same columns, so both feed the same checks.

The plan's path, and the segments' paths in it, must be readable where Spark's workers run.
Not here: what Spark does with the rows (`spark_job`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from geo_replicator.reconciliation.evidence.rows import EvidenceRow, evidence_of
from geo_replicator.reconciliation.job import headers_in
from geo_replicator.reconciliation.plan import Plan

FORMAT: Final = "tidemark_log"
HEADERS: Final = "headers"
SCAN: Final = "scan"

SCHEMA_DDL: Final = (
    "kind string, side string, topic string, partition int, key bigint, batches bigint,"
    " records bigint, size_bytes bigint, first_offset bigint, last_offset bigint, x1 bigint,"
    " x2 bigint, crc_bad bigint, payload binary"
)
ARROW_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()), ("side", pa.string()), ("topic", pa.string()),
        ("partition", pa.int32()), ("key", pa.int64()), ("batches", pa.int64()),
        ("records", pa.int64()), ("size_bytes", pa.int64()), ("first_offset", pa.int64()),
        ("last_offset", pa.int64()), ("x1", pa.int64()), ("x2", pa.int64()),
        ("crc_bad", pa.int64()), ("payload", pa.binary()),
    ]
)  # fmt: skip
assert tuple(ARROW_SCHEMA.names) == EvidenceRow._fields


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the source reads: the file that option `plan` names. `ranges` is for mode `headers`."""

    plan: Plan
    ranges: dict[str, list[int]] = {}


@dataclass
class Task(InputPartition):
    """One task of the plan."""

    index: int


class TidemarkLogSource(DataSource):
    """Registered under the name `tidemark_log`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns as Spark's DDL (`EvidenceRow`)."""
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> "TidemarkLogReader":
        """Return a reader; Spark hands the schema over by keyword."""
        return TidemarkLogReader(self.options)


class TidemarkLogReader(DataSourceReader):
    """Reads the tasks of one plan."""

    def __init__(self, options: Any) -> None:
        """Take the options `plan` (a file) and `mode`."""
        self.path = str(options["plan"])
        self.mode = str(options.get("mode", SCAN))

    def _work(self) -> Work:
        return msgspec.msgpack.decode(Path(self.path).read_bytes(), type=Work)

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task."""
        return [Task(index) for index in range(len(self._work().plan.tasks))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow record batches with the rows of one task's segments; raises OSError where the plan cannot be read.

        A segment that cannot be read is a row that says so.
        """
        assert isinstance(partition, Task)
        work = self._work()
        for spec in work.plan.tasks[partition.index]:
            if self.mode == HEADERS:
                table = headers_in(spec, work.ranges[f"{spec.topic}/{spec.partition}"])
                place = (HEADERS, spec.side.value, spec.topic, spec.partition, spec.base_offset)
                rows = [EvidenceRow(*place, batches=len(table), payload=table.tobytes())]
            else:
                rows = list(evidence_of(spec, work.plan))
            yield _record_batch(rows)


def _record_batch(rows: list[EvidenceRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, type=field.type)
        for column, field in zip(columns, ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
