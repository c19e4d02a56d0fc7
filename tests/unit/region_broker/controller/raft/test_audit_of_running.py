"""Why raftos 0.2.6 does not run today: each finding shown on it, and that ours does not have it.

| finding | shown by |
|---|---|
| RP1  pinned dependencies that cannot be installed | read: the requirements are in the archive, and none of it is installed here |
| RP2, RP3, RP4, RP5, RP6, RP8, RP9, RP10, RP11 | a test each, below |
| RP7  `get_event_loop()` outside a running loop raises | read: from Python 3.14 on; here it returns a loop that nobody runs, which is shown |

The safety of raftos: `test_audit_of_safety`.
"""

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from region_broker.controller.raft import raftos_classes, raftos_parts
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import Persist
from region_broker.controller.raft.entries import Entry, EntryKind, HardState, LogIndex, Term
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.raftos_parts import NotOurs, RaftosMissing
from region_broker.controller.raft.shell import GroupTimer
from tests.fixtures.raft_groups import FOLDER, alone, member, several, until
from tests.fixtures.stock_raftos import ME, A, Stock, stock_raftos
from tests.simulation.disk import SimulatedDisk
from tests.simulation.simulated_loop import run_simulated


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[Stock]:
    with stock_raftos(tmp_path) as found:
        yield found


async def commits_one() -> None:
    """A group of ours does what it is for."""
    async with several(3) as (leader, *others):
        await leader.running.propose(b"x")
        await until(lambda: all(site.machine.taken == [b"x"] for site in others))


async def test_rp2_a_node_cannot_be_made(stock: Stock) -> None:
    with pytest.raises(TypeError, match="loop"):
        stock.server.Node(address=ME, loop=asyncio.get_running_loop())


def test_rp2_ours_can_be_made() -> None:
    run_simulated(commits_one(), 1)


async def test_rp3_no_replicated_dict_can_be_changed(stock: Stock) -> None:
    with pytest.raises(TypeError, match="await"):
        await stock.replicator.ReplicatedDict("d").update({})


def test_rp4_no_message_can_be_read_in_the_default_serializer(stock: Stock) -> None:
    serializer = stock.serializers.MessagePackSerializer
    with pytest.raises(TypeError, match="encoding"):
        serializer.unpack(serializer.pack({"type": "request_vote"}))


def append_entries(**fields: object) -> dict[str, object]:
    return {
        "type": "append_entries", "term": 1, "leader_id": "a", "commit_index": 0, "request_id": 1,
        "prev_log_index": 0, "prev_log_term": 0, "entries": [], "sender": A,
    } | fields  # fmt: skip


async def test_rp5_a_follower_that_applies_drops_the_message(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(asyncio.futures, "InvalidStateError", raising=False)
    state = stock.member(A)
    state.start()
    state.request_handler(append_entries(entries=[{"term": 1, "command": {"x": 1}}]))
    state.request_handler(append_entries(commit_index=1, prev_log_index=1, prev_log_term=1))
    with pytest.raises(AttributeError):
        state.request_handler(append_entries(commit_index=1, prev_log_index=1, prev_log_term=1))
    assert state.log.last_applied == 1
    state.stop()


async def test_rp6_no_role_can_change_once_asyncio_has_lost_a_function(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(asyncio, "iscoroutinefunction", raising=False)
    state = stock.member(A)
    state.start()
    with pytest.raises(AttributeError):
        state.to_follower()
    state.stop()


def test_rp6_ours_does_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "iscoroutinefunction", raising=False)
    run_simulated(commits_one(), 1)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="raises: the finding itself")
def test_rp7_a_timer_made_outside_a_loop_has_one_that_nobody_runs(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = asyncio.new_event_loop()
    monkeypatch.setattr(asyncio, "get_event_loop", lambda: idle)
    stock.timer.Timer(1, lambda: None).start()
    assert not idle.is_running()
    idle.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        GroupTimer(1, lambda: None)


def test_rp8_the_default_folder_is_the_system_s(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    stock.conf.config.configure(stock.conf.Configuration.default_settings())
    monkeypatch.setattr(os, "makedirs", lambda path, **_: made.append(path))
    stock.storage.FileStorage("127.0.0.1:8000")
    assert made == ["/var/log/raftos"]


def test_rp8_ours_has_no_default() -> None:
    (folder,) = [each for each in dataclasses.fields(GroupSetup) if each.name == "folder"]
    assert folder.default is dataclasses.MISSING


def test_rp9_a_key_is_derived_at_import(tmp_path: Path) -> None:
    with stock_raftos(tmp_path, ciphers=True) as stock:
        assert [each["iterations"] for each in stock.derived] == [100_000]


GUARD = """
import sys
import region_broker.controller.raft.shell
loaded = {name for name in sys.modules if name.partition(".")[0] in {"msgpack", "cryptography", "raftos"} or "_vendor.raftos" in name}
print(sorted(loaded))
"""


def test_rp9_ours_loads_no_ciphers_and_no_serializers() -> None:
    """INV-RV1, in a process of its own, where nothing else imported any of it."""
    done = subprocess.run([sys.executable, "-c", GUARD], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_rp10_an_address_of_ipv6_is_no_address(stock: Stock) -> None:
    state = stock.member(A)
    with pytest.raises(TypeError):
        state.get_sender_id(("::1", 8000, 0, 0))
    with pytest.raises(ValueError, match="unpack"):
        await stock.server.Node.send(state.server, {}, "::1:8000")


def test_rp11_the_default_log_dies_at_its_fifth_write(tmp_path: Path) -> None:
    with stock_raftos(tmp_path, json=False) as stock:
        serializer = stock.conf.config.serializer
        serializer.unpack = staticmethod(msgspec.msgpack.decode)  # RP4 aside
        log = stock.storage.Log("me")
        for number in range(4):
            log.write(1, {"x": number})
        with pytest.raises(msgspec.DecodeError):
            log.write(1, {"x": 4})
        with pytest.raises(msgspec.DecodeError):
            stock.storage.Log("me")


def test_rp11_ours_reads_back_whatever_its_bytes_are() -> None:
    disk = SimulatedDisk()
    store = RaftStore.open(disk, FOLDER, member(1))[0]
    entries = tuple(
        Entry(LogIndex(index), Term(10), EntryKind.COMMAND, bytes(range(256)) + b"\n" * index)
        for index in range(1, 20)
    )
    for entry in entries:
        store.persist([Persist(HardState(Term(10)), None, (entry,))])
    store.close()
    assert RaftStore.open(disk, FOLDER, member(1))[1].entries == entries


# -- what is left of it in ours ------------------------------------------------------------------


async def test_what_is_left_out_cannot_be_used() -> None:
    """INV-RV1: raftos' own constructors reach for what is not there."""
    with pytest.raises(NotOurs):
        raftos_classes.RaftosFollower.election_interval()  # type: ignore[attr-defined]

    class Server:
        host, port, loop = "h", 1, asyncio.get_running_loop()

    with pytest.raises(NotOurs):
        raftos_classes.RaftosState(Server())  # type: ignore[call-arg]
    assert not [name for name in sys.modules if "_vendor.raftos" in name], (
        "the stand-ins are gone, too"
    )


def test_a_whole_life_uses_nothing_that_is_left_out() -> None:
    """INV-RV1: elections, entries, snapshots and restarts, and none of it came to a stand-in."""

    async def life() -> None:
        async with alone(snapshot_after_bytes=100) as site:
            for _ in range(10):
                await site.running.propose(bytes(100))
            await site.crash()
            site.start()
            await until(lambda: site.running.leader)

    run_simulated(commits_one(), 2)
    run_simulated(life(), 2)


def test_a_tree_without_raftos_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raftos_parts, "VENDORED", tmp_path)
    with pytest.raises(RaftosMissing, match=r"python \.ci/vendor_raftos\.py"):
        raftos_parts._load("timer")
