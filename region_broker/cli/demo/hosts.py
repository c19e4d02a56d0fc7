"""The demo's workers in processes of their own, four to a process, and whoever starts them again.

A host process that ends or falls silent is replaced: its workers come back under the same transactional ids, and what
it had asked to commit without an answer counts as unknown. A host ends with its starter: it stops when its standard
input is closed.

An application runs in processes that may crash, for whatever reason (librdkafka is C); the demo survives that
as an application would. What a host saw it writes to standard output, one line a commit.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import IO, Final

from region_broker.security.login import NO_SECURITY, Security
from region_broker.workbench.credentials import present_as
from region_broker.workbench.workload import Ack, Journal, Worker

WORKERS_PER_HOST: Final = 4
SILENT_S_MAX: Final = 30.0
_BEGUN, _ACKED, _OPEN, _FAILED = "begun", "acked", "open", "failed"


class _Reporting(Journal):
    """A journal that tells its starter."""

    def begin(self, ack: Ack) -> None:
        """Tell that a commit is being asked for."""
        _say(_BEGUN, ack.row_id, ack.attempt)

    def acknowledge(self, ack: Ack) -> None:
        """Tell that it was answered."""
        _say(_ACKED, ack.row_id, ack.attempt)

    def leave_open(self, ack: Ack) -> None:
        """Tell that it never was."""
        _say(_OPEN, ack.row_id, ack.attempt)

    def fail(self, text: str) -> None:
        """Tell why a worker starts anew."""
        _say(_FAILED, text)


def _say(*words: str) -> None:
    sys.stdout.write("\t".join(word.replace("\n", " ") for word in words) + "\n")
    sys.stdout.flush()


def main(bootstrap: str, life: str, numbers: list[int]) -> None:
    """Run the workers `numbers` until standard input is closed; its first line says as whom they ask."""
    present_as(Security(**json.loads(sys.stdin.readline())))
    workers = [Worker(number, bootstrap, _Reporting(), life=life) for number in numbers]
    for worker in workers:
        worker.start()
    sys.stdin.read()
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(5)


@dataclass(slots=True)
class _Host:
    """One process and what it left open."""

    numbers: list[int]
    lives: int = 0
    heard_s: float = 0.0
    process: subprocess.Popen[str] | None = None
    begun: dict[str, Ack] = field(default_factory=dict)


class HostedFleet:
    """All workers, in host processes; `stop` ends them."""

    def __init__(
        self, worker_count: int, bootstrap: str, journal: Journal, security: Security = NO_SECURITY
    ) -> None:
        """Start nothing yet; workers ask as `security`."""
        self._security = security
        numbers = list(range(worker_count))
        self._hosts = [
            _Host(numbers[first : first + WORKERS_PER_HOST])
            for first in range(0, worker_count, WORKERS_PER_HOST)
        ]
        self._bootstrap = bootstrap
        self._journal = journal
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(host,), daemon=True) for host in self._hosts
        ]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def start(self) -> None:
        """Start all hosts."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask all hosts to end after the transaction in hand, and wait for them."""
        self._stopping.set()
        for host in self._hosts:
            if host.process is not None and host.process.stdin is not None:
                with contextlib.suppress(OSError):
                    host.process.stdin.close()
        for thread in self._threads:
            thread.join(15)
        for host in self._hosts:
            if host.process is not None and host.process.poll() is None:
                host.process.kill()

    def _keep(self, host: _Host) -> None:
        while not self._stopping.is_set():
            process = self._spawn(host)
            assert process.stdout is not None
            self._listen(host, process.stdout)
            code = process.wait()
            for ack in host.begun.values():
                self._journal.leave_open(ack)
            host.begun.clear()
            if not self._stopping.is_set():
                self._journal.fail(f"a worker process ended with {code}")

    def _spawn(self, host: _Host) -> subprocess.Popen[str]:
        host.lives += 1
        host.heard_s = time.monotonic()
        arguments = [self._bootstrap, str(host.lives), *map(str, host.numbers)]
        host.process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            [sys.executable, "-m", "region_broker.cli.demo.hosts", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # a Ctrl-C in the terminal is its starter's, which closes its standard input
        )
        assert host.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen below
            host.process.stdin.write(json.dumps(asdict(self._security)) + "\n")
            host.process.stdin.flush()
        return host.process

    def _listen(self, host: _Host, said: IO[str]) -> None:
        for line in said:
            host.heard_s = time.monotonic()
            what, *words = line.rstrip("\n").split("\t")
            if what == _FAILED:
                self._journal.fail(words[0])
                continue
            ack = Ack(words[0], words[1], host.heard_s)
            if what == _BEGUN:
                host.begun[ack.attempt] = ack
                continue
            host.begun.pop(ack.attempt, None)
            if what == _ACKED:
                self._journal.acknowledge(ack)
            else:
                self._journal.leave_open(ack)

    def _watch(self) -> None:
        """Kill a host with commits under way that says nothing any more: it will not get on."""
        while not self._stopping.wait(1.0):
            for host in self._hosts:
                silent_s = time.monotonic() - host.heard_s
                if host.begun and silent_s > SILENT_S_MAX and host.process is not None:
                    host.process.kill()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(number) for number in sys.argv[3:]])
