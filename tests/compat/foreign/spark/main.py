"""Checks of Spark's own Kafka source and sink: main.py JARS HOST:PORT PREFIX [CHECK ...].

Runs in a Python with PySpark alone. Prints `ok|FAIL <tab> check <tab> reason` a line; exits with 1 when a check failed.
Spark's sink promises each record at least once, and that is what is checked where a query is stopped in the middle.
Topics are made, and transactions written, by the Java client that the connector brings.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, upper

WAIT_S = 40.0
PARTITIONS = 3


class World:
    """A Spark session and the Kafka at `bootstrap`; topics get the prefix."""

    def __init__(self, spark: SparkSession, bootstrap: str, prefix: str) -> None:
        """Use `spark`, whose class path has the connector."""
        self.spark = spark
        self.bootstrap = bootstrap
        self.prefix = prefix
        jvm: Any = spark._jvm
        assert jvm is not None
        self._kafka = jvm.org.apache.kafka
        self._java = jvm.java
        self._gateway: Any = spark.sparkContext._gateway

    def settings(self, **more: str) -> Any:
        """Return settings of a Java client; `_` in a key stands for a dot."""
        settings = self._java.util.HashMap()
        settings.put("bootstrap.servers", self.bootstrap)
        for key, value in more.items():
            settings.put(key.replace("_", "."), value)
        return settings

    def topic(self, name: str, partition_count: int = PARTITIONS) -> str:
        """Create a topic and wait until this address describes it: a mirror learns of it a moment later."""
        topic = f"{self.prefix}-spark-{name}"
        admin = self._kafka.clients.admin.Admin.create(self.settings())
        try:
            wanted = self._kafka.clients.admin.NewTopic(topic, partition_count, 1)
            admin.createTopics(self._java.util.List.of(wanted)).all().get()
            until(f"{topic} is listed", lambda: topic in admin.listTopics().names().get())
        finally:
            admin.close()
        return topic

    def producer(self, **more: str) -> Any:
        """Return a Java producer of strings."""
        text = "org.apache.kafka.common.serialization.StringSerializer"
        settings = self.settings(key_serializer=text, value_serializer=text, **more)
        return self._kafka.clients.producer.KafkaProducer(settings)

    def send(self, producer: Any, topic: str, values: list[str]) -> None:
        """Send `values` and wait until they are answered."""
        for value in values:
            producer.send(self._kafka.clients.producer.ProducerRecord(topic, value))
        producer.flush()

    def frame(self, values: list[str]) -> DataFrame:
        """Return a frame with a column `value`."""
        return self.spark.createDataFrame([(value,) for value in values], "value string")

    def batch(self, topic: str, **options: str) -> DataFrame:
        """Return what a batch read of `topic` gives now; `_` in an option stands for a dot."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        for key, value in options.items():
            reader = reader.option(key.replace("_", "."), value)
        if "subscribePattern" not in options:
            reader = reader.option("subscribe", topic)
        return reader.load().withColumn("value", col("value").cast("string"))

    def values(self, topic: str, count: int, **options: str) -> list[str]:
        """Return the values of `topic` once there are `count`: a mirror shows them at a tidemark."""
        found: list[str] = []

        def enough() -> bool:
            found[:] = [row.value for row in self.batch(topic, **options).select("value").collect()]
            return len(found) >= count

        until(f"{count} records in {topic}", enough, lambda: f"found {len(found)}")
        return found

    def copying(self, source: str, sink: str, checkpoint: Path, **options: str) -> Any:
        """Return a stream writer from `source` to `sink` that puts values in capitals."""
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
        )
        for key, value in options.items():
            reader = reader.option(key.replace("_", "."), value)
        return (
            reader.load()
            .select(col("key"), upper(col("value").cast("string")).alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", sink)
            .option("checkpointLocation", str(checkpoint))
        )


def until(what: str, condition: Callable[[], bool], found: Callable[[], str] = str) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {WAIT_S:.0f} s: {what} {found()}")
        time.sleep(0.1)


def same(expected: object, found: object, what: str) -> None:
    """Raise unless both are equal."""
    if expected != found:
        raise AssertionError(f"{what}: expected {expected!s:.200}, found {found!s:.200}")


def numbered(word: str, count: int) -> list[str]:
    """Return `count` different values."""
    return [f"{word}-{i}" for i in range(count)]


def batch_write_and_read(world: World) -> None:
    """Keys, values, headers and partitions come back; offsets of a partition have no hole."""
    topic = world.topic("batch")
    rows = world.spark.range(0, 300).select(
        concat(lit("k-"), col("id").cast("string")).alias("key"),
        concat(lit("v-"), col("id").cast("string")).alias("value"),
        (col("id") % PARTITIONS).cast("int").alias("partition"),
    )
    with_headers = rows.selectExpr(
        "*", "array(named_struct('key', 'h', 'value', binary(value))) AS headers"
    )
    sink = with_headers.write.format("kafka").option("kafka.bootstrap.servers", world.bootstrap)
    sink.option("topic", topic).option("includeHeaders", "true").save()
    world.values(topic, 300)
    found = world.batch(topic, includeHeaders="true").collect()
    expected = {(f"k-{i}", f"v-{i}", i % PARTITIONS, f"v-{i}") for i in range(300)}
    read = [
        (bytes(r.key).decode(), r.value, r.partition, bytes(r.headers[0].value).decode())
        for r in found
    ]
    same(300, len(read), "records")
    same(expected, set(read), "records")
    offsets = Counter((row.partition, row.offset) for row in found)
    same({(p, o): 1 for p in range(PARTITIONS) for o in range(100)}, dict(offsets), "offsets")


def transactions(world: World) -> None:
    """A read-committed batch read shows what was committed, and nothing of what is aborted or open."""
    topic = world.topic("transactions", 1)
    producer = world.producer(transactional_id=topic)
    producer.initTransactions()
    for word in ("kept", "dropped", "kept-too"):
        producer.beginTransaction()
        world.send(producer, topic, numbered(word, 50))
        if word == "dropped":
            producer.abortTransaction()
        else:
            producer.commitTransaction()
    kept = [*numbered("kept", 50), *numbered("kept-too", 50)]
    producer.beginTransaction()
    world.send(producer, topic, numbered("open", 10))
    committed = {"kafka_isolation_level": "read_committed"}
    same(kept, world.values(topic, 100, **committed), "read committed, one transaction open")
    producer.abortTransaction()
    producer.close()
    same(kept, world.values(topic, 100, **committed), "read committed")
    every = world.values(topic, 160)
    same(160, len(every), "read uncommitted")


def streaming_transactions(world: World) -> None:
    """A read-committed stream, in steps of few offsets, passes over aborted records and markers."""
    source, sink = world.topic("stream-txn", 1), world.topic("stream-txn-out", 1)
    producer = world.producer(transactional_id=source)
    producer.initTransactions()
    for number in range(12):
        producer.beginTransaction()
        world.send(producer, source, numbered(f"t{number}", 10))
        if number % 3 == 2:
            producer.abortTransaction()
        else:
            producer.commitTransaction()
    producer.close()
    kept = [value for n in range(12) if n % 3 != 2 for value in numbered(f"t{n}", 10)]
    committed = {"kafka_isolation_level": "read_committed"}
    world.values(source, len(kept), **committed)
    with tempfile.TemporaryDirectory() as folder:
        writer = world.copying(source, sink, Path(folder), maxOffsetsPerTrigger="17", **committed)
        query = writer.trigger(availableNow=True).start()
        same(True, query.awaitTermination(int(WAIT_S)), "the stream ended")
    same([value.upper() for value in kept], world.values(sink, len(kept)), "copied")


def checkpoint_between_runs(world: World) -> None:
    """A query that ended goes on behind its checkpoint: nothing is copied twice, nothing is left out."""
    source, sink = world.topic("stream"), world.topic("stream-out")
    expected: list[str] = []
    producer = world.producer()
    with tempfile.TemporaryDirectory() as folder:
        for word in ("one", "two", "three"):
            world.send(producer, source, numbered(word, 100))
            expected += [value.upper() for value in numbered(word, 100)]
            world.values(source, len(expected))
            query = world.copying(source, sink, Path(folder)).trigger(availableNow=True).start()
            same(True, query.awaitTermination(int(WAIT_S)), "the stream ended")
            same(
                sorted(expected), sorted(world.values(sink, len(expected))), f"copied after {word}"
            )
    producer.close()


def stopped_in_the_middle(world: World) -> None:
    """A query stopped between its batches and started again from its checkpoint copies every record."""
    source, sink = world.topic("stopped"), world.topic("stopped-out")
    producer = world.producer()
    world.send(producer, source, numbered("v", 2000))
    producer.close()
    world.values(source, 2000)
    expected = {value.upper() for value in numbered("v", 2000)}
    with tempfile.TemporaryDirectory() as folder:
        query = world.copying(source, sink, Path(folder), maxOffsetsPerTrigger="100").start()
        world.values(sink, 300)
        query.stop()
        copied = len(world.batch(sink).collect())
        if not 300 <= copied < 2000:
            raise AssertionError(f"it was not stopped in the middle: {copied} were copied")
        writer = world.copying(source, sink, Path(folder), maxOffsetsPerTrigger="500")
        again = writer.trigger(availableNow=True).start()
        same(True, again.awaitTermination(int(WAIT_S)), "the stream ended")
    found = world.values(sink, 2000)
    same(expected, set(found), "copied at least once")
    if len(found) > 2000 + 100:
        raise AssertionError(f"more than one batch was repeated: {len(found)} records")


def by_time_and_pattern(world: World) -> None:
    """Offsets by time, and topics by pattern."""
    first, second = world.topic("seek-a", 1), world.topic("seek-b", 1)
    producer = world.producer()
    world.send(producer, first, numbered("before", 5))
    world.values(first, 5)
    newest = (
        world.batch(first).selectExpr("max(unix_millis(timestamp)) AS newest").collect()[0].newest
    )
    time.sleep(0.01)  # the next record has a greater timestamp
    middle = newest + 1
    world.send(producer, first, numbered("after", 5))
    world.send(producer, second, numbered("other", 5))
    producer.close()
    world.values(first, 10)
    world.values(second, 5)
    after = world.values(first, 5, startingTimestamp=str(middle))
    same(numbered("after", 5), after, "from a time on")
    pattern = f"{world.prefix}-spark-seek-.*"
    every = world.values(first, 15, subscribePattern=pattern)
    words = sorted([*numbered("before", 5), *numbered("after", 5), *numbered("other", 5)])
    same(words, sorted(every), "by pattern")


CHECKS: dict[str, Callable[[World], None]] = {
    "batch: write and read with keys, headers and partitions": batch_write_and_read,
    "batch: read_committed with aborted and open transactions": transactions,
    "stream: read_committed, a few offsets at a time": streaming_transactions,
    "stream to Kafka: three runs from one checkpoint": checkpoint_between_runs,
    "stream to Kafka: stopped in the middle, restarted": stopped_in_the_middle,
    "batch: by time, by pattern of topics": by_time_and_pattern,
}


def main(arguments: list[str]) -> int:
    """Run the checks; returns the exit code."""
    jars, bootstrap, prefix, *wanted = arguments
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("tidemark compat")
        .config(
            "spark.driver.extraClassPath",
            ":".join(str(jar) for jar in sorted(Path(jars).glob("*.jar"))),
        )
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel(os.environ.get("SPARK_LOG", "off").upper())
    world = World(spark, bootstrap, prefix)
    failed = False
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        try:
            check(world)
        except Exception as error:  # noqa: BLE001 -- whatever went wrong is the result of the check
            failed = True
            print(
                f"FAIL\t{name}\t{type(error).__name__}: {' '.join(str(error).split())[:400]}",
                flush=True,
            )
        else:
            print(f"ok\t{name}\t", flush=True)
    spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
