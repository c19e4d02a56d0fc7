"""What raises in a callback of the event loop ends the node (INV-NCB1); asyncio alone would write a line and go on."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.simulation.kafka_client import Connection, batch_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region, until

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("silence")]


class OurMistake(Exception):
    """What no part of the broker expects."""


async def test_INV_NCB1_markers_that_cannot_be_written_for_a_mistake_of_ours_end_the_node(
    tmp_path: Path,
) -> None:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await region.start()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(region.node.failed_callbacks.handle)
    await region.node.topics.create_topic("t", 1, {})
    client = await Connection.open(region.fabric.site("client"), region.kafka_port)
    producer = await client.init_producer_id("tx")
    await client.add_partitions("tx", producer, "t", [0])
    await client.produce(
        "t", {0: batch_of(b"v", producer, 0, transactional=True)}, transactional_id="tx"
    )
    log = region.partition("t", 0).log.folder

    def fault(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.parent == log and path.suffix == ".log":
            raise OurMistake(str(path))

    region.disk.fault = fault
    ending = loop.create_task(client.end_txn("tx", producer, commit=True, tv2=False))
    await until(lambda: region.died, "the node ends")
    with pytest.raises(BaseExceptionGroup) as ended:
        region.check_running()
    assert ended.value.subgroup(OurMistake) is not None
    ending.cancel()
    client.close()
    await region.kill()
    loop.set_exception_handler(None)


async def test_what_fails_in_foreign_callbacks_does_not(tmp_path: Path) -> None:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await region.start()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(region.node.failed_callbacks.handle)
    loop.call_soon(int, "no number")
    for _ in range(10):
        await asyncio.sleep(0)
    region.check_running()
    await region.kill()
    loop.set_exception_handler(None)
