"""A writer on the Java client: a process of its own that is told by lines and tells by lines (`java/Writer.java`)."""

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

from chaos.history import Attempt, Outcome
from chaos.writers.journal import Gate, WritersJournal
from chaos.writers.writer import PACE_S, TOPIC


class JavaWriter(threading.Thread):
    """One transactional id, from start to `stop`; `command` runs a program of `java_program`, what it complains of goes to `log`;
    `properties`: a file that says who logs in.
    """

    client = "java"

    def __init__(  # noqa: PLR0913 -- what every writer is given, and how to run this one
        self, number: int, bootstrap: str, journal: WritersJournal, gate: Gate, chance: Random,
        *, command: Sequence[str], log: Path, properties: Path | None = None,
    ) -> None:  # fmt: skip
        """Nothing is started before `start`."""
        super().__init__(name=f"java-{number}", daemon=True)
        seed, pace_ms = chance.randrange(1 << 30), int(1000 * PACE_S)
        self._command = [*command, "Writer", bootstrap, self.name, TOPIC, str(seed), str(pace_ms)]
        self._command += [] if properties is None else [str(properties)]
        self._log = log
        self._journal, self._gate = journal, gate
        self._process: subprocess.Popen[str] | None = None
        self._begun: dict[int, tuple[int, int, int, int]] = {}
        self._is_stopping = False

    def start(self) -> None:
        """Start the process, and listen to it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        super().start()

    def run(self) -> None:
        """Take what it tells until it ends; a try that it left open may have been committed."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(*line.rstrip("\n").split("\t"))
        for number in list(self._begun):
            self._end(number, Outcome.UNKNOWN)
        if not self._is_stopping:
            self._journal.fail_of(self.client, f"ended with {self._process.wait()}")

    def _take(self, word: str, *rest: str) -> None:
        match word, rest:
            case "begun", (number, source, target, amount):
                term = self._journal.term
                self._begun[int(number)] = (term, int(source), int(target), int(amount))
            case "placed", (number, partition, offset):
                self._journal.place(f"{self.name}.{number}", int(partition), int(offset))
            case "ended", (number, outcome):
                self._end(int(number), Outcome[outcome])
            case "error", (name,):
                self._journal.fail_of(self.client, name)
            case "resting", ():
                self._gate.arrive(self.name)
            case _:
                self._journal.fail_of(self.client, f"said {word}")

    def _end(self, number: int, outcome: Outcome) -> None:
        term, source, target, amount = self._begun.pop(number)
        self._journal.note(Attempt(self.name, number, term, source, target, amount, outcome))

    def rest(self) -> None:
        """Let it come to the gate, which must be closed."""
        self._say("rest")

    def go_on(self) -> None:
        """Let it pass the gate."""
        self._say("go")

    def stop(self) -> None:
        """Ask it to end."""
        self._is_stopping = True
        self._say("stop")

    def _say(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError as error:  # it has ended: `run` tells so
            self._journal.fail_of(self.client, type(error).__name__)

    def finish(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time: it is killed where it did not."""
        self.join(timeout_s)
        assert self._process is not None
        in_time = not self.is_alive()
        if not in_time:
            self._process.kill()
        self._process.wait()
        self.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what it was not told any more, as it has ended
                pipe.close()
        return in_time
