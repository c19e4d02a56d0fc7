"""Threads whose end can be waited for."""

import asyncio
import threading

from region_broker.ports.system.threads import Threads


async def test_INV_THR1_work_that_nobody_waits_for_any_more_is_waited_for() -> None:
    threads = Threads(asyncio.get_running_loop())
    begun, gate, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        gate.wait()
        done.append("former")

    given_up = asyncio.get_running_loop().create_task(asyncio.to_thread(work))
    await asyncio.sleep(0)
    begun.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    ending = asyncio.get_running_loop().create_task(threads.until_ended())
    await asyncio.sleep(0)
    assert not ending.done()
    await asyncio.to_thread(gate.set)  # another thread serves meanwhile
    await ending
    assert done == ["former"]
    await threads.until_ended()
