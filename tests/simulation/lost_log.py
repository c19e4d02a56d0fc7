"""A region that has lost one of a topic's two logs, and what is left of both."""

from region_broker.region.failover.log_surgery import key_of
from tests.simulation.folder_faults import lose_log
from tests.simulation.kafka_client import Connection, Reader, batch_of
from tests.simulation.region_pair import Region, until
from tests.simulation.test_disk_and_clock import commit, connect

TOPIC = "orders"
COVERED = 7
"""What the newest tidemark covers of each log: three transactions of one record and a marker, and one that is open."""


async def loses_a_log(region: Region) -> None:
    """Let a region hold three transactions and one that is left open, all under a tidemark; then it ends, and loses a log."""
    await region.start()
    await region.node.topics.create_topic(TOPIC, 2, {})
    client = await connect(region)
    for number in range(3):
        await commit(client, f"both-{number}", TOPIC, (0, 1))
    producer = await client.init_producer_id("left-open")
    await client.add_partitions("left-open", producer, TOPIC, [0, 1])
    for index in (0, 1):
        batch = batch_of(b"open", producer, 0, transactional=True)
        await client.produce(TOPIC, {index: batch}, transactional_id="left-open")
    leader = region.node.tidemarks.cut_leader
    assert leader is not None
    keys = [key_of(region.partition(TOPIC, index)) for index in (0, 1)]
    await until(
        lambda: all(leader.published_cut().position_of(key) == COVERED for key in keys), "covered"
    )
    await region.kill()
    lose_log(region, TOPIC, 0)
    region.disk.write_out()


async def committed_values(client: Connection, start_offset: int) -> dict[int, list[bytes]]:
    """Return what two partitions hold, of the first one from `start_offset` on."""
    reader = Reader(TOPIC, 2, committed=True)
    reader.positions[0] = start_offset
    while await reader.read(client):
        pass
    values: dict[int, list[bytes]] = {0: [], 1: []}
    for index, _, value in reader.records:
        values[index].append(value)
    return values
