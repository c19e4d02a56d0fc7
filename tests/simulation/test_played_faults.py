"""The faults that the simulator plays are what they are called."""

import asyncio
import errno
import random
from contextvars import copy_context
from pathlib import Path

import pytest

from region_broker.ports.network import ByteStream
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import Fabric
from tests.simulation.simulated_loop import PROCESS, SimulatedLoop

pytestmark = pytest.mark.simulation
PLACE = ("127.0.0.1", 1)
FILE = Path("/f")


async def connected(fabric: Fabric) -> tuple[ByteStream, list[bytes]]:
    """Return a client's end of a connection, and what the server has read; the last is b"" once it ended."""
    heard: list[bytes] = []

    async def serve(stream: ByteStream) -> None:
        try:
            while data := await stream.read(100):
                heard.append(data)
        except ConnectionResetError:
            heard.append(b"reset")

    await fabric.site("server").listen(*PLACE, serve)
    return await fabric.site("client").connect(*PLACE), heard


async def test_INV_SN4_what_a_severed_client_sent_arrives_all_the_same_and_behind_its_retry() -> (
    None
):
    fabric = Fabric(random.Random(1))
    stream, heard = await connected(fabric)
    fabric.late_share, fabric.late_sites = 1.0, frozenset({"server"})
    stream.write(b"1")
    fabric.sever("server")
    with pytest.raises(ConnectionResetError):
        await stream.read(1)
    fabric.late_share = 0.0
    again = await fabric.site("client").connect(*PLACE)
    again.write(b"2")
    await asyncio.sleep(10)
    assert heard == [b"2", b"1", b"reset"]


@pytest.mark.parametrize("muted", ["client", "server"])
async def test_INV_SN2_a_muted_way_loses_what_is_sent_and_the_other_way_works(muted: str) -> None:
    fabric = Fabric(random.Random(1))
    stream, heard = await connected(fabric)
    other = {"client": "server", "server": "client"}[muted]
    fabric.mute(muted, other)
    stream.write(b"1")
    await asyncio.sleep(10)
    assert heard == ([] if muted == "client" else [b"1"])
    connecting = asyncio.get_running_loop().create_task(fabric.site("client").connect(*PLACE))
    await asyncio.sleep(10)
    assert not connecting.done()
    connecting.cancel()
    fabric.unmute(muted, other)
    again = await fabric.site("client").connect(*PLACE)
    assert again.peer == "server:0"


async def test_INV_SIL5_several_processes_are_paused_in_one_step() -> None:
    """Where something of the first one was about to run."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    done: list[str] = []
    for name in ("one", "two"):
        context = copy_context()
        context.run(PROCESS.set, name)
        loop.call_soon(done.append, name, context=context)
    for name in ("one", "two"):
        loop.pause(name)
    await asyncio.sleep(1)
    assert not done
    for name in ("two", "one"):
        loop.resume(name)
    await asyncio.sleep(1)
    assert sorted(done) == ["one", "two"]


async def test_INV_SIL5_a_paused_process_does_nothing_and_then_all_that_was_due() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    done: list[tuple[str, int]] = []
    woken = asyncio.Event()

    async def count(name: str) -> None:
        for n in range(3):
            await asyncio.sleep(1)
            done.append((name, n))
        await woken.wait()
        await asyncio.to_thread(done.append, (name, 9))

    tasks = []
    for name in ("one", "two"):
        context = copy_context()
        context.run(PROCESS.set, name)
        tasks.append(loop.create_task(count(name), context=context))
    await asyncio.sleep(1.5)
    loop.pause("one")
    await asyncio.sleep(10)
    woken.set()
    await asyncio.sleep(10)
    assert done == [("one", 0), ("two", 0), ("two", 1), ("two", 2), ("two", 9)]
    loop.resume("one")
    await asyncio.gather(*tasks)
    assert done[5:] == [("one", 1), ("one", 2), ("one", 9)]
    assert "call_soon" not in vars(loop)


def test_a_full_disk_takes_no_more_than_fits_and_says_how_much_that_is() -> None:
    disk = SimulatedDisk()
    disk.room_bytes = 10
    file = disk.open(FILE, create=True)
    file.pwrite(0, b"12345678")
    file.pwrite(0, b"abcdefgh")  # in place: it takes no room
    with pytest.raises(OSError, match="No space left") as full:
        file.pwrite(8, b"123")
    assert full.value.errno == errno.ENOSPC
    assert disk.volume_bytes(FILE.parent)[1] == 2


def test_INV_SD1_after_a_power_loss_later_writes_are_there_in_any_part_of_them() -> None:
    found: set[str] = set()
    for seed in range(300):
        disk = SimulatedDisk()
        file = disk.open(FILE, create=True)
        disk.fsync_dir(FILE.parent)
        for page in range(3):
            file.pwrite(4096 * page, bytes([page + 1]) * 4096)
        disk.power_loss(random.Random(seed))
        pages = bytes(disk.content(FILE))[::4096]
        found.add("".join("-" if not each else str(each) for each in pages))
    assert {"", "1", "12", "123", "--3", "-2", "---", "1-3"} <= found
