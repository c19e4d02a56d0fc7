"""The clients of a drill: transactional producers and consume-process-produce workers that know all regions.

Every client has all bootstrap addresses and starts anew after an error, as an application does. A journal keeps when
each commit was answered, by client. Every other producer is patient: it repeats a call as long as librdkafka names its
error retriable.

Not here: what happens to the regions (`chaos.drill.play`), what a standstill is (`chaos.drill.gaps`).
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.history import Attempt, Outcome
from chaos.transfers import Journal as TellersJournal
from chaos.transfers import Teller
from region_broker.workbench import workload
from region_broker.workbench.dataset import Transfer

_INPUT_PARTITIONS: Final = 6
_ROW_COUNT: Final = 30_000
_PACE_S: Final = 0.02
_PATIENCE_S: Final = 120.0
_JOIN_S: Final = 30.0
_ADMIN_S: Final = 20.0


class Times:
    """When each client's commits were answered."""

    def __init__(self) -> None:
        """Nothing was answered."""
        self._lock = threading.Lock()
        self._commits_s: dict[str, list[float]] = defaultdict(list)

    def note_and_rest(self, client: str) -> None:
        """A commit of `client`, which calls this, was answered now; it begins its next one in a moment."""
        with self._lock:
            self._commits_s[client].append(time.monotonic())
        time.sleep(_PACE_S)

    def of(self, clients: Sequence[str]) -> dict[str, list[float]]:
        """Return a copy."""
        with self._lock:
            return {client: list(self._commits_s[client]) for client in clients}


class _TellersJournal(TellersJournal):
    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times

    def note(self, attempt: Attempt) -> None:
        """Keep when, not what."""
        if attempt.outcome is Outcome.COMMITTED:
            self._times.note_and_rest(attempt.teller)


class _WorkersJournal(workload.Journal):
    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times

    def acknowledge(self, ack: workload.Ack) -> None:
        """Keep when, not what."""
        self._times.note_and_rest(_worker_name(int(ack.attempt.split(".")[0])))


class DrillClients:
    """All clients. `config` is given to librdkafka, beside their own."""

    def __init__(
        self, bootstrap: str, seed: int, *, tellers: int, workers: int, config: Mapping[str, Any]
    ) -> None:
        """Nothing is connected before `start`."""
        self.times = Times()
        self._bootstrap = bootstrap
        self._config = config
        chance = Random(seed)
        journal = _TellersJournal(self.times)
        self._tellers = [
            Teller(
                f"{'patient' if n % 2 else 'teller'}-{n}",
                bootstrap,
                journal,
                chance.randrange(1 << 30),
                config={**config, "client.id": f"teller-{n}"},
                patience_s=_PATIENCE_S if n % 2 else 0.0,
            )
            for n in range(tellers)
        ]
        self._worker_count = workers
        self._workers_journal = _WorkersJournal(self.times)
        self._fleet: workload.Fleet | None = None
        self.names = [each.name for each in self._tellers] + [
            _worker_name(number) for number in range(workers)
        ]

    def prepare(self, bootstrap: str) -> None:
        """Create topics and input at the region that acts."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = {
            workload.INPUT_TOPIC: _INPUT_PARTITIONS,
            workload.ACCOUNTS_TOPIC: workload.ACCOUNT_PARTITIONS,
        }
        for future in admin.create_topics([NewTopic(n, c, 1) for n, c in topics.items()]).values():
            future.result(_ADMIN_S)
        rows = (Transfer(str(n), f"a{n % 40}", f"b{n % 40}", 1) for n in range(_ROW_COUNT))
        workload.produce_input(bootstrap, rows, _INPUT_PARTITIONS)

    def start(self) -> None:
        """Work from now on."""
        for teller in self._tellers:
            teller.start()
        self._fleet = workload.Fleet.start(
            self._worker_count, self._bootstrap, self._workers_journal, config=self._config
        )

    def behind(self, since_s: float, count: int) -> list[str]:
        """Return who has had fewer than `count` commits answered since then."""
        found = self.times.of(self.names)
        return [name for name, times in found.items() if sum(t > since_s for t in times) < count]

    def stop(self) -> list[str]:
        """End all clients; return those that do not end in time (they end with this process)."""
        workers = self._fleet.workers if self._fleet is not None else []
        threads: list[Teller | workload.Worker] = [*self._tellers, *workers]
        for thread in threads:
            thread.stop()
        deadline_s = time.monotonic() + _JOIN_S
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]


def _worker_name(number: int) -> str:
    return f"worker-{number}"
