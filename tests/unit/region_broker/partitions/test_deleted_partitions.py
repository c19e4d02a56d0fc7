"""What is left of topics that are deleted: nothing that waits for the cycle collector."""

import asyncio
import gc
from pathlib import Path

from region_broker.partitions.partition import Partition
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.waiting import until


def partitions_kept() -> int:
    return sum(type(each) is Partition for each in gc.get_objects())


def encoders_kept() -> int:
    """Return what `json` leaves of each text with indents: closures that hold each other."""
    names = (getattr(each, "__qualname__", "") for each in gc.get_objects())
    return sum(name == "_make_iterencode.<locals>._iterencode_dict" for name in names)


async def test_INV_PT12_a_deleted_partition_is_freed_without_the_cycle_collector(
    tmp_path: Path,
) -> None:
    """Each left 10 KB to a collector that comes after millions of objects: who makes topics and deletes them by thousands fills the memory."""
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await asyncio.sleep(0)
        gc.collect()
        before, encoders = partitions_kept(), encoders_kept()
        gc.disable()
        try:
            topics = [{"name": f"t{number}", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()} for number in range(3)]  # fmt: skip
            made = await client.call(19, 5, {"topics": topics, "timeout": 10_000})
            assert [each.error_code.name for each in made.topics] == ["none"] * 3
            assert partitions_kept() == before + 6
            names = tuple(each["name"] for each in topics)
            gone = await client.call(20, 3, {"topic_names": names, "timeout": 10_000})
            assert [each.error_code.name for each in gone.responses] == ["none"] * 3
            await until(lambda: partitions_kept() == before, looks=100)
            assert encoders_kept() == encoders
        finally:
            gc.enable()
