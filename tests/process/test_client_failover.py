"""The client when a commit's answer is lost and when its region dies: written once, whatever happened.

Goal: INV-CP1 to INV-CP3 at the moment that is hard, between the commit request and its answer.
Method: a proxy loses the answers to EndTxn; the region is killed, or not; what is read back is compared.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from region_broker.client import (
    Fenced,
    Producer,
    ReadCommittedConsumer,
    TidemarkError,
    TransactionAborted,
    TransactionalProducer,
)
from region_broker.workbench import stage
from region_broker.workbench.local_cluster import LocalCluster
from tests.process.client_fixture import (
    CALL_S,
    ProxiedRegions,
    create_topic,
    fail_over,
    open_cluster,
    proxied_regions,
    read_all,
    switch,
)

pytestmark = [pytest.mark.process, pytest.mark.own_process]

PRODUCE, END_TXN = 0, 26


def producer(
    cluster: LocalCluster, name: str, *, ask: bool = True, config: Mapping[str, Any] | None = None
) -> TransactionalProducer:
    urls = cluster.http if ask else ()
    return TransactionalProducer(
        bootstrap=cluster.bootstrap, urls=urls, transactional_id=name, config=config
    )


async def shown(
    cluster: LocalCluster, topic: str, count: int, *, acting: str = "eu", mirror: str = "us"
) -> None:
    """Wait until `mirror` has reached a tidemark that holds `count` committed records of `topic`."""

    def there() -> bool:
        return len(read_all(cluster.place(mirror).bootstrap, topic)) >= count

    await asyncio.to_thread(stage.wait_mirrored, cluster, acting, mirror, CALL_S)
    await asyncio.to_thread(stage.wait_until, f"{count} records in {mirror}", CALL_S, there)


async def write(writer: TransactionalProducer, topic: str, value: str) -> None:
    async with writer.transaction() as txn:
        await txn.send(topic, f"{value}-0", partition=0)
        await txn.send(topic, f"{value}-1", partition=1)


async def test_INV_CP2_lost_commit_answer_is_asked_for_again(tmp_path: Path) -> None:
    async with proxied_regions(tmp_path, 1) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as writer:
            regions.swallow(END_TXN)
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(write(writer, "t", "once"))
                await regions.answer_swallowed()
                assert not writing.done()
                regions.swallow()
            await write(writer, "t", "next")
        found = await asyncio.to_thread(read_all, cluster.bootstrap, "t")
    assert found == ["once-0", "next-0", "once-1", "next-1"]


@pytest.mark.parametrize("reaches_mirror", [True, False])
async def test_INV_CP2_region_dies_between_commit_and_its_answer(
    tmp_path: Path, reaches_mirror: bool
) -> None:
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as writer:
            await write(writer, "t", "before")
            await shown(cluster, "t", 2)
            if not reaches_mirror:
                # The mirror's link goes to eu's peer port; clients must not be forwarded over it.
                for proxy in regions.peer.values():
                    await proxy.stop()
                await regions.kafka["us"].stop()
            regions.swallow(END_TXN)
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(write(writer, "t", "once"))
                await regions.answer_swallowed()
                if reaches_mirror:
                    await shown(cluster, "t", 4)
                assert not writing.done()
                await asyncio.to_thread(cluster.kill, "eu")
                if not reaches_mirror:
                    for name in ("eu", "us"):
                        await regions.peer[name].start()
                    await regions.kafka["us"].start()
                await asyncio.to_thread(fail_over, cluster, "us")
                regions.swallow()
            await write(writer, "t", "next")
        found = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "t")
    assert found == ["before-0", "once-0", "next-0", "before-1", "once-1", "next-1"]


@pytest.mark.parametrize("reaches_mirror", [True, False])
async def test_INV_CP32_a_region_dies_behind_a_planned_switch_between_commit_and_its_answer(
    tmp_path: Path, reaches_mirror: bool
) -> None:
    """The producer's id is of a region epoch before the one that it writes under, and it has not noticed (INV-VS6)."""
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as writer:
            await write(writer, "t", "before")
            given_under = writer.region_epoch
            await asyncio.to_thread(switch, cluster, "us")
            await write(writer, "t", "switched")
            assert writer.region_epoch == given_under
            await shown(cluster, "t", 4, acting="us", mirror="eu")
            if not reaches_mirror:
                for proxy in regions.peer.values():
                    await proxy.stop()
                await regions.kafka["eu"].stop()
            regions.swallow(END_TXN)
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(write(writer, "t", "once"))
                await regions.answer_swallowed()
                if reaches_mirror:
                    await shown(cluster, "t", 6, acting="us", mirror="eu")
                assert not writing.done()
                await asyncio.to_thread(cluster.kill, "us")
                if not reaches_mirror:
                    for name in ("eu", "us"):
                        await regions.peer[name].start()
                    await regions.kafka["eu"].start()
                await asyncio.to_thread(fail_over, cluster, "eu")
                regions.swallow()
            await write(writer, "t", "next")
        found = await asyncio.to_thread(read_all, cluster.place("eu").bootstrap, "t")
    names = ("before", "switched", "once", "next")
    assert found == [f"{name}-{part}" for part in (0, 1) for name in names]


async def test_unknown_outcome_without_urls_is_said_and_not_guessed(tmp_path: Path) -> None:
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p", ask=False) as writer:
            await write(writer, "t", "before")
            await shown(cluster, "t", 2)
            regions.swallow(END_TXN)
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(outcome_of(writer))
                await regions.answer_swallowed()
                await shown(cluster, "t", 4)
                await asyncio.to_thread(cluster.kill, "eu")
                await asyncio.to_thread(fail_over, cluster, "us")
                regions.swallow()
        error = writing.result()
    assert error is not None
    assert error.maybe_written
    assert not error.retriable
    assert "urls" in str(error)


async def test_INV_CP3_an_older_instance_does_not_fence_one_that_began_after_the_failover(
    tmp_path: Path,
) -> None:
    """Its fence looks like one by the failover, since the region epoch has changed, too."""
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as older:
            await write(older, "t", "older")
            await shown(cluster, "t", 2)
            await asyncio.to_thread(cluster.kill, "eu")
            await asyncio.to_thread(fail_over, cluster, "us")
            async with producer(cluster, "p") as newer:
                await write(newer, "t", "newer")
                with pytest.raises(Fenced, match="another producer uses"):
                    await write(older, "t", "late")
                await write(newer, "t", "newest")
        found = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "t")
    assert found == [f"{name}-{part}" for part in (0, 1) for name in ("older", "newer", "newest")]


async def test_INV_CP3_an_older_instance_does_not_fence_one_that_began_before_a_planned_switch(
    tmp_path: Path,
) -> None:
    """The switch leaves the newer one's pair in force (INV-TC14), though another region epoch gave it out."""
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p") as older, producer(cluster, "p") as newer:
            await write(newer, "t", "newer")
            await asyncio.to_thread(switch, cluster, "us")
            with pytest.raises(Fenced, match="another producer uses"):
                await write(older, "t", "late")
            await write(newer, "t", "newest")
        found = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "t")
    assert found == [f"{name}-{part}" for part in (0, 1) for name in ("newer", "newest")]


async def test_INV_CP20_a_producer_goes_on_whose_abort_took_the_next_epoch_after_a_planned_switch(
    tmp_path: Path,
) -> None:
    """Records that nobody acknowledged in time leave a gap, and the abort asks for the next epoch (KIP-360)."""
    async with proxied_regions(tmp_path, 2) as regions:
        cluster = regions.cluster
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        async with producer(cluster, "p", config={"message.timeout.ms": 3_000}) as writer:
            await write(writer, "t", "before")
            await asyncio.to_thread(switch, cluster, "us")
            regions.swallow(PRODUCE)
            with pytest.raises(ValueError, match="given up"):
                await give_up(writer, regions)
            await write(writer, "t", "next")
        found = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "t")
    assert found == [f"{name}-{part}" for part in (0, 1) for name in ("before", "next")]


async def give_up(writer: TransactionalProducer, regions: ProxiedRegions) -> None:
    async with writer.transaction() as txn:
        await txn.send("t", "unanswered", partition=0)
        while not txn.attempt.errors:
            await writer.wait_for_room(txn.attempt)
        regions.swallow()
        raise ValueError("given up")


def readme_example(cluster: LocalCluster) -> str:
    """Return the README's asyncio example, word for word but for the addresses."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "consumer.transactions(" in block
    ]
    assert code.count("KAFKA =") == code.count("HTTP =") == 1
    code = re.sub(r'^KAFKA = ".*"$', f'KAFKA = "{cluster.bootstrap}"', code, flags=re.MULTILINE)
    return re.sub(r'^HTTP = ".*"$', f'HTTP = "{cluster.http}"', code, flags=re.MULTILINE)


async def test_the_README_s_example_invoices_each_order_once_through_a_failover(
    tmp_path: Path,
) -> None:
    with open_cluster(tmp_path / "cluster", 2) as cluster:
        await asyncio.to_thread(cluster.start)
        for topic in ("orders", "invoices"):
            await asyncio.to_thread(create_topic, cluster.bootstrap, topic)
        script = tmp_path / "example.py"
        script.write_text(readme_example(cluster))
        with (tmp_path / "errors").open("wb") as errors:
            running = await asyncio.to_thread(
                lambda: subprocess.Popen(
                    [sys.executable, str(script)], stdout=errors, stderr=errors
                )
            )
        try:
            async with Producer(bootstrap=cluster.bootstrap) as shop:
                await shop.send_many("orders", [f"{number}" for number in range(200)])
                await invoiced(cluster, "eu", 200)
                await shown(cluster, "invoices", 100)
                await asyncio.to_thread(cluster.kill, "eu")
                orders = asyncio.get_running_loop().create_task(
                    shop.send_many("orders", [f"{number}" for number in range(200, 400)])
                )
                await asyncio.to_thread(fail_over, cluster, "us")
                await orders
            kept = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "orders")
            found = await invoiced(cluster, "us", len(kept))
            assert running.poll() is None
        finally:
            running.terminate()
            running.wait(CALL_S)
        assert sorted(found) == sorted(f"invoice for {order}" for order in kept)
        assert "Traceback" not in (tmp_path / "errors").read_text()


async def invoiced(cluster: LocalCluster, region: str, count: int) -> list[str]:
    """Wait until a region shows `count` invoices, and return them all."""
    found: list[str] = []

    def there() -> bool:
        found[:] = read_all(cluster.place(region).bootstrap, "invoices")
        return len(found) >= count

    await asyncio.to_thread(stage.wait_until, f"{count} invoices", 3 * CALL_S, there)
    return found


async def outcome_of(writer: TransactionalProducer) -> TidemarkError | None:
    try:
        await write(writer, "t", "perhaps")
    except TidemarkError as error:
        return error
    return None


async def test_INV_CP3_the_same_objects_go_on_after_a_failover(tmp_path: Path) -> None:
    with open_cluster(tmp_path, 2) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(create_topic, cluster.bootstrap, "in")
        await asyncio.to_thread(create_topic, cluster.bootstrap, "out")
        async with producer(cluster, "feed") as feed, feed.transaction() as txn:
            for number in range(30):
                await txn.send("in", str(number), partition=number % 2)
        async with (
            producer(cluster, "work") as writer,
            ReadCommittedConsumer(
                ["in"], bootstrap=cluster.bootstrap, group_id="g",
                config={"session.timeout.ms": 6000},
            ) as consumer,
            asyncio.timeout(60),
        ):  # fmt: skip
            done: set[str] = set()
            async for message in consumer:
                value = str(message.value(), "utf-8")  # type: ignore[arg-type]
                try:
                    async with writer.transaction() as work:
                        await work.send("out", value, partition=0)
                        await work.send_offsets(consumer)
                        if len(done) == 10 and cluster.pids("eu"):  # in the middle of one
                            await shown(cluster, "out", 10)
                            await asyncio.to_thread(cluster.kill, "eu")
                            await asyncio.to_thread(fail_over, cluster, "us")
                except TransactionAborted:
                    await consumer.rewind()
                else:
                    done.add(value)
                if len(done) == 30:
                    break
            assert writer.region_epoch == 17
        found = await asyncio.to_thread(read_all, cluster.place("us").bootstrap, "out")
    assert sorted(found) == sorted(str(number) for number in range(30))
