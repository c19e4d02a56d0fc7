"""The rows of docs/FAULTS.md about folders, one after the other, on one pair of real regions.

Before each row one region acts, the other mirrors it, and all that was ever acknowledged is in both; so it is behind
it, but what an operator gave up by name. The acting region is called home here, whichever it is: after the first row
that ends by a failover, every row stands behind one.

    python -m tests.process.folder_faults --only older      all rows whose names contain a word
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import KafkaError, Message, Producer

from chaos.readers import read_all
from chaos.shuffle.plan import Part
from chaos.shuffle.readiness import reasons
from chaos.shuffle.settling import settled
from chaos.shuffle.stage import Stage
from region_broker.cli.demo.stage import losses, wait_mirrored, wait_until
from tests.process.client_world import create_topic

TOPIC: Final = "kept"
PARTITIONS: Final = 2
RECORDS: Final = 40
PATIENCE_S: Final = 60.0
SEED: Final = 7


class Pair:
    """Two regions, and every value that was acknowledged and not given up."""

    def __init__(self, folder: Path) -> None:
        """Plan them."""
        self.stage = Stage(folder, 2, SEED)
        self.kept: set[str] = set()
        self._written = 0

    def set_up(self) -> None:
        """Start them, with a topic and records."""
        self.stage.set_up()
        create_topic(self.stage.cluster.bootstrap, TOPIC, PARTITIONS)
        self.write()
        self.be_whole()

    def home(self) -> str:
        """Return who acts."""
        found: list[str] = []

        def one_acts() -> bool:
            found[:] = [n for n in self.stage.names if (v := self.stage.view(n)) and v["acting"]]
            return len(found) == 1

        wait_until("one region to act", PATIENCE_S, one_acts)
        return found[0]

    def roles(self) -> tuple[str, str]:
        """Return who acts, and who mirrors."""
        home = self.home()
        return home, next(name for name in self.stage.names if name != home)

    def write(self) -> set[str]:
        """Write some records at the region that acts; return them when they are acknowledged."""
        acknowledged: set[str] = set()

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            value = message.value()
            assert isinstance(value, bytes)
            acknowledged.add(value.decode())

        producer = Producer(
            {"bootstrap.servers": self.stage.cluster.place(self.home()).bootstrap,
             "enable.idempotence": True, "log_level": 0}
        )  # fmt: skip
        for number in range(self._written, self._written + RECORDS):
            producer.produce(
                TOPIC, str(number), partition=number % PARTITIONS, on_delivery=delivered
            )
        self._written += RECORDS
        assert producer.flush(PATIENCE_S) == 0
        assert len(acknowledged) == RECORDS
        self.kept |= acknowledged
        return acknowledged

    def await_phase(self, name: str, phase: str) -> Mapping[str, Any]:
        """Return the view of a region once it is in this phase."""
        found: list[Mapping[str, Any]] = []

        def there() -> bool:
            view = self.stage.view(name)
            found[:] = [view] if view is not None and view["phase"] == phase else []
            return bool(found)

        wait_until(f"region {name} to be {phase}", PATIENCE_S, there)
        return found[0]

    def refusal(self, name: str) -> str:
        """Start a region that must not open its folder; return why it does not."""
        reason = self.stage.launch(name)
        assert reason is not None, f"{name} opened a folder that is not its own, or not whole"
        return reason

    def says(self, name: str, *words: str) -> None:
        """Require that `/readyz` refuses, and that its reasons contain all these words."""
        told = " ".join(reasons(self.stage.cluster.place(name).http_port).values())
        assert all(word in told for word in words), f"{words} are not all in {told!r}"

    def order(self, kind: str, name: str) -> None:
        """Give an operator's word."""
        refused = self.stage.order(kind, name)
        assert not refused, refused

    def be_whole(self) -> None:
        """Require that one acts, one mirrors, and both hold exactly what is kept."""

        def views() -> dict[str, Any]:
            return {
                name: view
                for name in self.stage.names
                if (view := self.stage.view(name)) is not None
            }

        wait_until(
            "one region to act and one to mirror", PATIENCE_S,
            lambda: len(views()) == len(self.stage.names) and settled(views()),
        )  # fmt: skip
        home, mirror = self.roles()
        wait_mirrored(self.stage.cluster, home, mirror, PATIENCE_S)
        for name in (home, mirror):
            assert self.values(name) == sorted(self.kept), f"{name} does not hold what is kept"
        assert not self.stage.anomalies, self.stage.anomalies

    def values(self, name: str) -> list[str]:
        """Return all values that a reader finds in a region, doubled ones twice."""
        place = self.stage.cluster.place(name)
        return sorted(r.value.decode() for r in read_all(place.bootstrap, {TOPIC: PARTITIONS}))


def alone(pair: Pair) -> None:
    """Home starts with its own folder, and nobody answers: it acts."""
    home, mirror = pair.roles()
    pair.stage.kill(mirror)
    pair.stage.kill(home)
    pair.stage.start(home)
    pair.await_phase(home, "acting")
    pair.write()
    pair.stage.start(mirror)


def exchanged(pair: Pair) -> None:
    """Each node is given the other one's folder: neither opens it, and each says whose it is."""
    home, mirror = pair.roles()
    pair.stage.kill(home)
    pair.stage.kill(mirror)
    pair.stage.folders.swap(home, mirror)
    for name, other in ((home, mirror), (mirror, home)):
        assert f"region {other}" in pair.refusal(name)
    pair.stage.folders.swap(home, mirror)
    pair.stage.start(home)
    pair.stage.start(mirror)


def _half(pair: Pair, name: str, part: Part) -> None:
    pair.stage.kill(name)
    assert pair.stage.folders.halve(name, part)
    reason = pair.refusal(name)
    missing = "logs" if part is Part.PARTITION else part.value
    assert missing in reason, reason
    assert "empty it" in reason, reason
    assert pair.stage.folders.make_whole(name)
    pair.stage.start(name)


def half_of_home_without_logs(pair: Pair) -> None:
    """Home lost its logs and has its metadata: it is not opened before the rest is given back."""
    _half(pair, pair.home(), Part.LOGS)


def half_of_home_without_metadata(pair: Pair) -> None:
    """Home lost its metadata and has its logs: the same."""
    _half(pair, pair.home(), Part.METADATA)


def half_of_mirror_without_logs(pair: Pair) -> None:
    """A mirror lost its logs: the same."""
    _half(pair, pair.roles()[1], Part.LOGS)


def half_of_mirror_without_metadata(pair: Pair) -> None:
    """A mirror lost its metadata: the same."""
    _half(pair, pair.roles()[1], Part.METADATA)


def empty_mirror(pair: Pair) -> None:
    """A mirror comes back empty: it joins, and copies all."""
    mirror = pair.roles()[1]
    pair.stage.kill(mirror)
    pair.stage.folders.empty(mirror)
    pair.stage.start(mirror)


def older_mirror(pair: Pair) -> None:
    """A mirror comes back with an older copy of its folder: it copies what it lacks."""
    mirror = pair.roles()[1]
    pair.stage.kill(mirror)
    pair.stage.folders.copy(mirror, time.monotonic())
    pair.stage.start(mirror)
    pair.write()
    pair.be_whole()
    pair.stage.kill(mirror)
    pair.stage.folders.restore(mirror, pair.stage.folders.copies(mirror)[-1:])
    pair.stage.start(mirror)


def empty_home(pair: Pair) -> None:
    """Home comes back empty: it waits and names the mirror, which takes over at the operator's word."""
    home, mirror = pair.roles()
    pair.stage.kill(home)
    pair.stage.folders.empty(home)
    pair.stage.start(home)
    pair.await_phase(home, "unborn")
    pair.says(home, f"tidemark region failover --to {mirror}")
    assert pair.values(mirror) == sorted(pair.kept)
    pair.order("failover", mirror)


def empty_home_alone(pair: Pair) -> None:
    """Home comes back empty, and nobody answers: it waits, and says so; the mirror comes, and takes over."""
    home, mirror = pair.roles()
    pair.stage.kill(mirror)
    pair.stage.kill(home)
    pair.stage.folders.empty(home)
    pair.stage.start(home)
    pair.await_phase(home, "unborn")
    pair.says(home, "tidemark")
    pair.stage.start(mirror)
    pair.order("failover", mirror)


def _make_home_older(pair: Pair) -> tuple[str, str, set[str]]:
    """Return home, its mirror, and what home's folder lacks now; the mirror shows it."""
    home, mirror = pair.roles()
    pair.stage.kill(home)
    pair.stage.folders.copy(home, time.monotonic())
    pair.stage.start(home)
    newer = pair.write()
    pair.be_whole()
    pair.stage.kill(home)
    pair.stage.folders.restore(home, pair.stage.folders.copies(home)[-1:])
    return home, mirror, newer


def older_home_taken_over(pair: Pair) -> None:
    """Home comes back with an older copy of its folder: it closes, and a failover to the mirror loses nothing."""
    home, mirror, _ = _make_home_older(pair)
    pair.stage.start(home)
    pair.await_phase(home, "disputed")
    pair.says(home, f"failover --to {mirror}", "accept-loss")
    assert pair.values(mirror) == sorted(pair.kept)
    pair.order("failover", mirror)


def older_home_accepted(pair: Pair) -> None:
    """The same, and the operator lets it act: what the mirror had beyond it is gone, and named by the losses."""
    home, mirror, newer = _make_home_older(pair)
    pair.stage.start(home)
    pair.await_phase(home, "disputed")
    pair.order("accept-loss", home)
    pair.kept -= newer
    pair.be_whole()
    counted = sum(each["plain_record_count"] for each in losses(pair.stage.cluster, mirror))
    assert counted >= len(newer), f"{counted} records are named of {len(newer)}"


def older_home_writes_first(pair: Pair) -> None:
    """An older home acts alone and writes other records; the mirror comes: home closes, both keep what they have."""
    home, mirror, _ = _make_home_older(pair)
    pair.stage.kill(mirror)
    pair.stage.start(home)
    pair.await_phase(home, "acting")
    others = pair.write()
    pair.kept -= others
    pair.stage.start(mirror)
    pair.await_phase(home, "disputed")
    assert pair.values(mirror) == sorted(pair.kept)
    pair.order("failover", mirror)


MAIN: Final[Sequence[Callable[[Pair], None]]] = (
    alone,
    exchanged,
    half_of_home_without_logs,
    older_home_taken_over,
    half_of_home_without_metadata,
    empty_home,
    older_home_accepted,
)
ALL: Final = (
    *MAIN,
    older_home_writes_first,
    empty_home_alone,
    alone,
    exchanged,
    half_of_mirror_without_logs,
    half_of_mirror_without_metadata,
    empty_mirror,
    older_mirror,
    older_home_taken_over,
    older_home_accepted,
)


def play(folder: Path, rows: Sequence[Callable[[Pair], None]]) -> None:
    """Play the rows on one pair; raises AssertionError and `StageError`."""
    pair = Pair(folder)
    began_s = time.monotonic()
    try:
        pair.set_up()
        for row in rows:
            click.echo(f"{time.monotonic() - began_s:6.1f}  {row.__name__}, home is {pair.home()}")
            pair.write()
            pair.be_whole()
            row(pair)
            pair.be_whole()
        click.echo(f"{time.monotonic() - began_s:6.1f}  all {len(rows)} rows are as they should be")
    finally:
        pair.stage.tear_down()


@click.command()
@click.option("--only", default="", help="Rows whose names contain this.")
def main(only: str) -> None:
    """Play every row, or some."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-folders-"))
    click.echo(f"folders: {folder}")
    play(folder, [row for row in ALL if only in row.__name__])


if __name__ == "__main__":
    main()
    sys.exit(0)
