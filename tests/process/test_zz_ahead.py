import asyncio
from pathlib import Path
import pytest
from region_broker.client import ReadCommittedConsumer, TransactionalProducer
from tests.process.client_world import *
from tests.process.test_client_failover import producer, shown

async def test_ahead(tmp_path: Path) -> None:
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as writer, ReadCommittedConsumer(["t"], bootstrap=cluster.bootstrap, group_id="g", config={"session.timeout.ms": 6000}) as consumer:
            async with writer.transaction() as txn:
                for i in range(10): await txn.send("t", f"a{i}", partition=0)
            await shown(cluster, "t", 10)
            got=[]
            for i in range(100):
                m=await consumer.poll(0.2)
                if m: got.append(m.value())
                if len(got)==10: break
            await consumer.commit()
            await shown(cluster, "t", 10)
            await asyncio.sleep(1)
            for proxy in regions.peer.values(): proxy.stop()
            regions.kafka["us"].stop()
            async with writer.transaction() as txn:
                for i in range(10): await txn.send("t", f"b{i}", partition=0)
            for i in range(100):
                m=await consumer.poll(0.2)
                if m: got.append(m.value())
                if len(got)==20: break
            print("before", len(got))
            await asyncio.to_thread(cluster.kill, "eu")
            for name in ("eu", "us"): await regions.peer[name].start()
            await regions.kafka["us"].start()
            await asyncio.to_thread(fail_over, cluster, "us")
            async with writer.transaction() as txn:
                for i in range(3): await txn.send("t", f"c{i}", partition=0)
            after=[]
            for i in range(60):
                m=await consumer.poll(0.2)
                if m: after.append((m.offset(), m.value()))
            print("after", after)
