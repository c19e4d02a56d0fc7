"""A node that another process has forked, as who asked for it has it."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from region_broker.workbench.starter import ForkedProcess


@pytest.fixture
def starter() -> Iterator[tuple[ForkedProcess, socket.socket]]:
    """A process that has ended, which nobody has said yet, and the starter's end of its connection."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    ours, starters = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, starters:
        starters.send(msgspec.json.encode(ended.pid))
        yield ForkedProcess(ours, None, None), starters


def test_INV_STS1_a_signal_to_a_process_that_has_just_ended_is_no_error(
    starter: tuple[ForkedProcess, socket.socket],
) -> None:
    process, starters = starter
    process.kill()
    starters.send(msgspec.json.encode(-9))
    assert (process.wait(), process.poll(), process.returncode) == (-9, -9, -9)


def test_INV_STS1_what_becomes_of_a_process_whose_starter_has_ended_is_said_not_to_be_known(
    starter: tuple[ForkedProcess, socket.socket],
) -> None:
    process, starters = starter
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.001)
    starters.close()
    with pytest.raises(ConnectionError, match="is not known"):
        process.poll()
