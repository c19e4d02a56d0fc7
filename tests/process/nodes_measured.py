"""What the runnable measurements share: a node's CPU and memory from /proc, and a raw client without a library.

A blocking socket and frames built once: what is timed is the node and the loopback, not a client's decoding.
"""

import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CALL_S = 60.0


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise AssertionError("the process has ended")


def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Return how much of a core a process uses while nobody asks it for anything."""
    before, started = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - started)


def load() -> str:
    """Return the machine's load over one minute: what a figure beside it is worth."""
    return f"load {os.getloadavg()[0]:.1f}"


@dataclass
class Wire:
    """One connection to a node; `frame` is a whole request without its length."""

    stream: socket.socket

    @classmethod
    def to(cls, port: int) -> "Wire":
        """Connect to a Kafka port on loopback."""
        stream = socket.create_connection(("127.0.0.1", port), CALL_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(stream)

    def send(self, frame: bytes) -> None:
        """Send one request."""
        self.stream.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """Return the next answer, from its correlation id on."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < size_bytes:
            piece = self.stream.recv(size_bytes - len(parts))
            assert piece, "the node closed the connection"
            parts += piece
        return bytes(parts)

    def call_ms(self, frame: bytes) -> tuple[float, bytes]:
        """Return how long an answer took, in ms, and the answer."""
        started = time.perf_counter()
        self.send(frame)
        answer = self.receive()
        return 1000 * (time.perf_counter() - started), answer
