"""Two real regions that begin as a template left them, and all that was acknowledged and not given up by name.

What a region shows is read by a Kafka client, and orders are given by the command line: nothing is believed of what a
test could read from the inside.

Not here: what is done to folders (`folders`), what must be seen then (`runner`).
"""

import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner
from confluent_kafka import KafkaError, Message, Producer

from chaos.judges.operator import settled
from chaos.readers import read_all
from chaos.shuffle.readiness import reasons
from chaos.shuffle.stage import Stage
from region_broker.cli.main import main as tidemark_command
from region_broker.ports.system.clock import SystemClock
from region_broker.workbench.stage import StageError, losses, wait_mirrored, wait_until
from tests.process.client_fixture import create_topic

TOPIC: Final = "kept"
PARTITIONS: Final = 2
RECORDS: Final = 20
PATIENCE_S: Final = 60.0
SEED: Final = 7
DAY_S: Final = 86_400
_CLOCK_FOLDER: Final = Path(__file__).parent / "moved_clock"
_LEFT_BEHIND: Final = shutil.ignore_patterns("node.log", "aside")


class Fixture:
    """Two regions in a folder; nothing runs before `start`."""

    def __init__(self, folder: Path, kept: set[str], *, regions: int = 2) -> None:
        """Find the cluster of the folder, or plan one; `kept`: what it holds already."""
        self.stage = Stage(folder, regions, SEED)
        self.folder = folder
        self.kept = set(kept)
        self.gone: set[str] = set()
        """What was acknowledged, and an operator's word has given up."""
        self._clock_moved_s: dict[str, int] = {}
        """A region's clients live in its time: a time far in its future is refused, as in Kafka."""

    def __enter__(self) -> "Fixture":
        """Open the links."""
        self.stage.links.__enter__()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Stop what runs, and close the links."""
        self.stage.cluster.stop()
        self.stage.links.__exit__()

    def link(self) -> None:
        """Let regions dial each other through links that can be cut, from the next start on."""
        self.stage.cluster.route_peers(self.stage.links.ports)

    def launch(self, name: str, *, clock_moved_s: int = 0, **settings: int) -> str | None:
        """Start a region, with these settings of its own; return None once it answers, or why it ended."""
        self._clock_moved_s[name] = clock_moved_s
        of_its_own = {f"TIDEMARK_{key.upper()}": str(value) for key, value in settings.items()}
        with _surroundings({**_moved_clock(clock_moved_s), **of_its_own}):
            return self.stage.launch(name)

    def start(self, name: str, *, clock_moved_s: int = 0, **settings: int) -> None:
        """Start a region that must open its folder."""
        refused = self.launch(name, clock_moved_s=clock_moved_s, **settings)
        assert refused is None, f"{name} does not open its folder: {refused}"

    def log(self, name: str) -> str:
        """Return what its node has logged."""
        return (self.folder / name / "node.log").read_text(errors="replace")

    def tidemark(self, *arguments: str) -> str:
        """Run the command line, in this process, against all regions; return what it printed."""
        done = CliRunner().invoke(tidemark_command, [*arguments, "--url", self.stage.cluster.http])
        assert done.exit_code == 0, (
            f"tidemark {' '.join(arguments)}: {done.output} {done.exception}"
        )
        return done.output

    def view(self, name: str) -> Mapping[str, Any]:
        """Return how a region stands, nothing if it does not answer."""
        return self.stage.view(name) or {}

    def await_view(
        self, name: str, what: str, fits: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """Return the view of a region once it fits."""
        found: list[Mapping[str, Any]] = [{}]

        def there() -> bool:
            found[0] = self.view(name)
            return bool(found[0]) and fits(found[0])

        try:
            wait_until(f"region {name} {what}", PATIENCE_S, there)
        except StageError as error:
            shown = {key: found[0].get(key) for key in ("role", "phase", "reason_not_acting")}
            raise AssertionError(f"{error}: {shown}") from error
        return found[0]

    def await_acting(self, name: str) -> None:
        """Return once it takes writes and says that it is ready."""
        self.await_view(name, "acts", lambda view: bool(view["acting"]))
        port = self.stage.cluster.place(name).http_port
        wait_until(f"region {name} is ready", PATIENCE_S, lambda: not reasons(port))

    def await_mirrored(self, primary: str, mirror: str) -> None:
        """Return once the mirror has copied all that the primary holds."""
        wait_mirrored(self.stage.cluster, primary, mirror, PATIENCE_S)

    def says(self, name: str, *words: str) -> None:
        """Require that `/readyz`, log and `region status` contain all these words."""
        self.ready_tells(name, *words)
        self.status_says(*words)
        what = f"{words} to be in the log of {name}"
        wait_until(what, PATIENCE_S, lambda: all(word in self.log(name) for word in words))

    def ready_tells(self, name: str, *words: str) -> None:
        """Return once `/readyz` refuses with all these words."""
        port = self.stage.cluster.place(name).http_port
        told = ""

        def tells() -> bool:
            nonlocal told
            told = " ".join(reasons(port).values())
            return all(word in told for word in words)

        try:
            wait_until("the reason", PATIENCE_S, tells)
        except StageError as error:
            raise AssertionError(f"{words} are not all in /readyz of {name}: {told!r}") from error

    def status_says(self, *words: str) -> str:
        """Return `region status` once it contains all these words."""
        status = ""

        def tells() -> bool:
            nonlocal status
            status = " ".join(self.tidemark("region", "status").split())
            return all(word in status for word in words)

        try:
            wait_until("the status", PATIENCE_S, tells)
        except StageError as error:
            raise AssertionError(f"{words} are not all in `region status`: {status}") from error
        return status

    def write(self, primary: str) -> set[str]:
        """Write some records there; return them when they are acknowledged."""
        begin = len(self.kept) + len(self.gone)
        values = [str(number) for number in range(begin, begin + RECORDS)]
        self.send(primary, TOPIC, values, PARTITIONS)
        self.kept |= set(values)
        return set(values)

    def send(
        self, primary: str, topic: str, values: Sequence[str], partitions: int, *, age_ms: int = 0
    ) -> None:
        """Write these to a topic, to its partitions in turn; return when all are acknowledged."""
        acknowledged = 0

        def delivered(error: KafkaError | None, _message: Message) -> None:
            nonlocal acknowledged
            assert error is None, error
            acknowledged += 1

        written_ms = SystemClock().wall_ms() + self._clock_moved_s.get(primary, 0) * 1000 - age_ms
        producer = Producer(
            {"bootstrap.servers": self.stage.cluster.place(primary).bootstrap,
             "enable.idempotence": True, "log_level": 0, "linger.ms": 0}
        )  # fmt: skip
        for number, value in enumerate(values):
            producer.produce(
                topic, value, partition=number % partitions, on_delivery=delivered,
                timestamp=written_ms,
            )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0
        assert acknowledged == len(values)

    def give_up(self, values: set[str]) -> None:
        """Note that the word of an operator took these away."""
        self.kept -= values
        self.gone |= values

    def alerts_that_it_waits(self, name: str, reason: str) -> None:
        """Require that its metrics say what it waits for: an alert goes by it."""

        def waits() -> bool:
            with urllib.request.urlopen(f"{self.stage.cluster.place(name).http}/metrics") as answer:
                told = answer.read().decode().splitlines()
            return any(
                line.startswith("tidemark_region_waits{")
                and f'reason="{reason}"' in line
                and line.endswith(" 1.0")
                for line in told
            )

        wait_until(f"the metric of {name} says {reason}", PATIENCE_S, waits)

    def lose_log(self, name: str) -> None:
        """Take the folder of one of the topic's partitions away."""
        shutil.rmtree(self.log_folder(name, TOPIC, 1))

    def log_folder(self, name: str, topic: str, partition: int) -> Path:
        """Return where a region keeps a log."""
        notes = (self.folder / name / "logs").glob("*/topic.json")
        [found] = [each for each in notes if f'"{topic}"' in each.read_text()]
        return found.parent / str(partition)

    def values(self, name: str, topic: str = TOPIC, partitions: int = PARTITIONS) -> list[str]:
        """Return all values that a reader finds in a region, doubled ones twice."""
        place = self.stage.cluster.place(name)
        return sorted(r.value.decode() for r in read_all(place.bootstrap, {topic: partitions}))

    def shows_all(self, name: str) -> None:
        """Require that a reader finds there exactly what is kept."""
        found = self.values(name)
        missing = sorted(self.kept - set(found))
        assert found == sorted(self.kept), f"{name} lacks {missing}, or shows more: {found}"

    def await_shown(self, mirror: str) -> None:
        """Return once a tidemark covers all that is kept: what was copied a moment ago is not shown yet (T17)."""
        try:
            wait_until("a tidemark", PATIENCE_S, lambda: self.kept <= set(self.values(mirror)))
        except StageError:
            self.shows_all(mirror)  # says what is missing
            raise

    def settle(self) -> tuple[str, list[str]]:
        """Return who acts and who mirrors it, once each region does either and has copied all."""

        def views() -> dict[str, Any]:
            found = {name: self.view(name) for name in self.stage.names}
            return {name: view for name, view in found.items() if view}

        wait_until(
            "one region to act and the others to mirror", PATIENCE_S,
            lambda: len(views()) == len(self.stage.names) and settled(views()),
        )  # fmt: skip
        [primary] = [name for name, view in views().items() if view["acting"]]
        mirrors = [name for name in self.stage.names if name != primary]
        for mirror in mirrors:
            self.await_mirrored(primary, mirror)
        return primary, mirrors

    def be_whole(self) -> str:
        """Require that one acts, the others mirror it, and all show what is kept; return who acts."""
        primary, mirrors = self.settle()
        for mirror in mirrors:
            self.await_shown(mirror)
        for name in (primary, *mirrors):
            self.shows_all(name)
        assert not self.stage.anomalies, self.stage.anomalies
        return primary

    def losses_are_named(self) -> None:
        """Require that `region losses` counts at least what was given up, in one region."""
        if self.gone:
            counted = [
                sum(each["plain_record_count"] for each in losses(self.stage.cluster, name))
                for name in self.stage.names
            ]
            assert max(counted) >= len(self.gone), f"{counted} are named of {len(self.gone)}"


@dataclass(frozen=True, slots=True)
class Template:
    """Regions that do not run: `folder` with a folder each and, below `older`, one that lacks the last records.

    `former`: copies from before the failover, if there was one.
    """

    folder: Path
    primary: str
    mirrors: tuple[str, ...]
    kept: frozenset[str]
    newer: frozenset[str]
    """What the older copies lack."""
    former: Path | None = None

    @property
    def mirror(self) -> str:
        """The first mirror."""
        return self.mirrors[0]

    def open(self, folder: Path) -> Fixture:
        """Return a fixture in `folder` that begins like this."""
        names = (self.primary, *self.mirrors)
        for each in names:
            shutil.copytree(self.folder / each, folder / each, ignore=_LEFT_BEHIND)
        shutil.copy(self.folder / "cluster.json", folder)
        return Fixture(folder, set(self.kept), regions=len(names))

    def put(self, source: Path, fixture: Fixture, name: str) -> None:
        """Give a region that does not run this folder instead of its own."""
        fixture.stage.folders.empty(name)
        shutil.copytree(source, fixture.folder / name, ignore=_LEFT_BEHIND, dirs_exist_ok=True)


def born(folder: Path, *, regions: int = 2) -> Template:
    """Return regions that have never seen a failover."""
    with Fixture(folder, set(), regions=regions) as fixture:
        fixture.stage.cluster.start()
        create_topic(fixture.stage.cluster.bootstrap, TOPIC, PARTITIONS)
        return _left(fixture, None)


def failed_over(folder: Path, before: Template) -> Template:
    """Return the same regions after the one that acted was lost, the other one took over, and it returned."""
    folder.mkdir(parents=True)
    with before.open(folder) as fixture:
        fixture.start(before.mirror)
        fixture.tidemark("region", "failover", "--to", before.mirror, "--yes")
        fixture.start(before.primary)
        return _left(fixture, before.folder)


def _left(fixture: Fixture, former: Path | None) -> Template:
    """Write, keep older copies, write again, and kill all."""
    primary, mirrors = fixture.settle()
    fixture.write(primary)
    fixture.be_whole()
    names = (primary, *mirrors)
    for name in names:
        fixture.stage.kill(name)
        shutil.copytree(fixture.folder / name, fixture.folder / "older" / name, ignore=_LEFT_BEHIND)
    for name in names:
        fixture.start(name)
    fixture.await_acting(primary)
    newer = fixture.write(primary)
    fixture.be_whole()
    for name in names:
        fixture.stage.kill(name)
    kept = frozenset(fixture.kept)
    return Template(fixture.folder, primary, tuple(mirrors), kept, frozenset(newer), former)


@contextmanager
def _surroundings(variables: Mapping[str, str]) -> Iterator[None]:
    """Let what is started meanwhile find these in its environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _moved_clock(moved_s: int) -> Mapping[str, str]:
    """Return what makes a Python believe that it is another day: it finds `sitecustomize` there."""
    if not moved_s:
        return {}
    path = filter(None, (str(_CLOCK_FOLDER), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(path), "CLOCK_MOVED_S": str(moved_s)}
