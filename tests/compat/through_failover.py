"""Foreign transactional producers through the loss of a region: `python -m tests.compat.through_failover [java] [go]`.

Not part of the test run: it needs the tools of `tests.compat.run`. Two regions run, one producer of KIP-890's second
generation that knows both addresses writes one value to two partitions a transaction. The primary is killed, the
mirror takes over, and the same producer must go on (T22). Judged from what the client saw and what stands in the log
afterwards.

Exit codes: 0 all went on and nothing is torn; 1 not so; 2 a tool or a download is missing.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Final

from region_broker.workbench.local_cluster import LocalCluster
from tests.compat.foreign_clients import MissingToolError
from tests.compat.run import prepared
from tests.process.client_fixture import create_topic, fail_over, open_cluster, read_all

TOPIC: Final = "orders"
PARTITION_COUNT: Final = 2
COMMITS: Final = 20
"""So many before the loss, and at least so many after it."""
AFTER_LOSS: Final = 3 * COMMITS
"""Read on so far: the first of them may have been acknowledged before the loss."""


def main(arguments: Sequence[str]) -> int:
    """Play each client; returns the exit code."""
    commands: dict[str, Callable[[str], list[str]]] = {
        "java": lambda both: [*prepared("java", "off")[:-1], "ThroughFailover", both, TOPIC],
        "go": lambda both: [*prepared("go", "off"), both, TOPIC, "--through-failover"],
    }
    faults = []
    for name in arguments or list(commands):
        try:
            found = play(commands[name])
        except MissingToolError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{name}: {'; '.join(found) or 'went on with the same producer, nothing torn'}")
        faults += found
    return 1 if faults else 0


def play(command: Callable[[str], list[str]]) -> list[str]:
    """Lose the primary under the client; return what was wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-through-") as folder,
        open_cluster(Path(folder), 2) as cluster,
    ):
        cluster.start()
        primary, mirror = cluster.plan.regions
        create_topic(primary.bootstrap, TOPIC, PARTITION_COUNT)
        client = subprocess.Popen(
            command(f"{primary.bootstrap},{mirror.bootstrap}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            acknowledged = _lose_primary(cluster, client.stdout)
            client.stdin.write("\n")
            client.stdin.close()
            acknowledged += _committed(client.stdout)
        faults = judged(acknowledged, read_all(mirror.bootstrap, TOPIC))
        return faults if client.returncode == 0 else [*faults, f"it ended: {client.returncode}"]


def _lose_primary(cluster: LocalCluster, said: IO[str]) -> list[int]:
    """Return what was acknowledged, in order."""
    committed = _committed(said)
    primary, mirror = cluster.plan.regions
    acknowledged = list(islice(committed, COMMITS))
    cluster.kill(primary.name)
    fail_over(cluster, mirror.name)
    return [*acknowledged, *islice(committed, AFTER_LOSS)]


def _committed(said: IO[str]) -> Iterator[int]:
    """Yield the numbers that were committed, and show everything else."""
    for line in said:
        word, _, rest = line.rstrip("\n").partition("\t")
        if word == "committed":
            yield int(rest)
        else:
            print(line, end="")


def judged(acknowledged: Sequence[int], values: Sequence[str]) -> list[str]:
    """Return what is wrong with the values read, given the commits that were acknowledged, in order.

    The end of what the primary acknowledged may be lost with it, and is in the loss statement; nothing else may.
    """
    counts = Counter(int(value) for value in values)
    lost = [at for at, number in enumerate(acknowledged) if number not in counts]
    first, behind = (lost[0], lost[-1] + 1) if lost else (COMMITS, COMMITS)
    faults = []
    if torn := sorted(number for number, count in counts.items() if count != PARTITION_COUNT):
        faults.append(f"torn or doubled: {torn}")
    if behind - first != len(lost):
        faults.append(f"lost between what is there: {[acknowledged[at] for at in lost]}")
    if len(acknowledged) - behind < COMMITS:
        faults.append(f"only {len(acknowledged) - behind} commits after the loss")
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
