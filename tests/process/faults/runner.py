"""Plays a run of `cases` or a scene of `regions`. A run makes the fault, starts the regions, judges what is seen, follows the way out, judges again.

What must always hold: what was acknowledged or shown is there in the end, in both regions, or was given up by a
failover or an accepted loss, and then `region losses` names it; meanwhile the other region shows all that it had.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from confluent_kafka import KafkaException

from chaos.shuffle.plan import Part
from region_broker.workbench.node_http import ApiError
from region_broker.workbench.stage import StageError
from tests.process.faults.cases import Expected, Fault, Other, Run, Seen, Side, Way, When
from tests.process.faults.fixture import DAY_S, Fixture, Template, born, failed_over
from tests.process.faults.scenes import Scene, Stand


class Templates:
    """The folders that runs begin with, made when the first run asks for them."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet."""
        self._folder = folder
        self._made: dict[tuple[When, int], Template] = {}

    def of(self, when: When, regions: int = 2) -> Template:
        """Return so many regions as they are before or after a failover."""
        if (when, regions) not in self._made:
            folder = self._folder / f"template-{when}-{regions}"
            self._made[when, regions] = (
                born(folder, regions=regions)
                if when is When.BEFORE
                else failed_over(folder, self.of(When.BEFORE, regions))
            )
        return self._made[when, regions]


class Play:
    """One run in a folder of its own."""

    def __init__(self, run: Run, template: Template, fixture: Fixture) -> None:
        """Nothing is done yet."""
        self.run = run
        self.template = template
        self.fixture = fixture
        primary, mirror = template.primary, template.mirror
        self.region, self.other = (
            (primary, mirror) if run.row.side is Side.PRIMARY else (mirror, primary)
        )
        self.written_alone: set[str] = set()

    def through(self) -> None:
        """Play it; raises AssertionError and `StageError`."""
        _FAULTS[self.run.row.fault](self)
        if self.run.other is Other.LATER:
            self._see(self.run.row.alone)
            self._start_other()
        else:
            self._start_other()
            self._launch_if_down()
        self._see(self.run.row.met)
        self._other_shows_what_it_had()
        _WAYS[self.run.way](self)
        self._settle_losses()
        primary = self.fixture.be_whole()
        self.fixture.write(primary)
        self.fixture.be_whole()
        self.fixture.losses_are_named()

    def _start_other(self) -> None:
        if self.run.row.fault is Fault.EXCHANGED:
            self._refused(self.other, self.region, _words(self.run.row.met, self.region))
        else:
            self.fixture.start(self.other)

    def _launch_if_down(self) -> str | None:
        if self.fixture.stage.up(self.region):
            return None
        moved_s = -DAY_S if self.run.row.fault is Fault.CLOCK else 0
        return self.fixture.launch(self.region, clock_moved_s=moved_s)

    def _see(self, expected: Expected) -> None:
        """Require that the region does what is expected, and tells it."""
        words = _words(expected, self.other)
        if expected.seen is Seen.REFUSES:
            self._refused(self.region, self.other, words)
            return
        refused = self._launch_if_down()
        assert refused is None, refused
        if expected.seen is Seen.ACTS:
            self.fixture.await_acting(self.region)
            self.written_alone |= self.fixture.write(self.region)
        elif expected.seen is Seen.MIRRORS:
            self.fixture.await_mirrored(self.other, self.region)
        elif expected.seen is Seen.FOLLOWS:
            self._follows(words)
        else:
            phase = _PHASES[expected.seen]
            self.fixture.await_view(self.region, f"is {phase}", lambda view: view["phase"] in phase)
            self.fixture.says(self.region, *words)
            if expected.seen in _WAITS_FOR:
                self.fixture.alerts_that_it_waits(self.region, _WAITS_FOR[expected.seen])

    def _refused(self, name: str, other: str, words: Iterable[str]) -> None:
        reason = self.fixture.launch(name)
        assert reason is not None, f"{name} opened a folder that is not its own, or not whole"
        for word in words:
            assert word in reason, f"{word!r} is not in the last word of {name}: {reason}"
        if self.fixture.stage.up(other):
            assert "does not answer" in self.fixture.tidemark("region", "status")

    def _follows(self, words: Iterable[str]) -> None:
        """Require that a mirror whose primary is away shows what it holds, and says what it waits for."""
        self.fixture.await_view(self.region, "mirrors", lambda view: view["role"] == "mirror")
        shown = set(self.fixture.values(self.region))
        assert shown <= self.fixture.kept
        if self.run.row.fault is Fault.CLOCK:
            assert shown == self.fixture.kept
        self.fixture.status_says(*words)

    def _other_shows_what_it_had(self) -> None:
        if not self.fixture.stage.up(self.other) or self.run.row.met.seen in _GO_ON:
            return
        found = set(self.fixture.values(self.other))
        assert found == self.template.kept, f"{self.other} lacks {self.template.kept - found}"

    def _settle_losses(self) -> None:
        """Note what the operator's word has taken away."""
        if self.run.way is Way.ACCEPT_LOSS:
            self.fixture.give_up(set(self.template.newer))
        elif self.run.row.met.seen is not Seen.ACTS:
            # What it acknowledged alone, behind a history that the other region had already gone past.
            self.fixture.give_up(self.written_alone)

    # One method per fault.

    def make_nothing(self) -> None:
        pass

    def make_empty(self) -> None:
        self.fixture.stage.folders.empty(self.region)

    def make_older(self) -> None:
        self.template.put(self.template.folder / "older" / self.region, self.fixture, self.region)

    def make_former(self) -> None:
        assert self.template.former is not None
        self.template.put(self.template.former / self.region, self.fixture, self.region)

    def make_exchanged(self) -> None:
        self.fixture.stage.folders.swap(self.region, self.other)

    def make_copied(self) -> None:
        self.template.put(self.template.folder / self.other, self.fixture, self.region)

    def make_no_logs(self) -> None:
        assert self.fixture.stage.folders.halve(self.region, Part.LOGS)

    def make_no_metadata(self) -> None:
        assert self.fixture.stage.folders.halve(self.region, Part.METADATA)

    def make_lost_log(self) -> None:
        self.fixture.lose_log(self.region)

    # One method per way out.

    def leave(self) -> None:
        """Wait for what happens by itself."""

    def fail_over(self) -> None:
        self.fixture.tidemark("region", "failover", "--to", self.other, "--yes")

    def accept_loss(self) -> None:
        self.fixture.tidemark("region", "accept-loss", "--at", self.region, "--yes")

    def give_back(self) -> None:
        self._give_others_back()
        self.fixture.stage.kill(self.region)
        self.template.put(self.template.folder / self.region, self.fixture, self.region)
        self.fixture.start(self.region)

    def empty_it(self) -> None:
        self._give_others_back()
        self.make_empty()
        self.fixture.start(self.region)
        if self.run.row.side is Side.PRIMARY:
            self.fixture.says(self.region, f"region failover --to {self.other}")
            self.fail_over()

    def _give_others_back(self) -> None:
        if self.run.row.fault is Fault.EXCHANGED:
            self.template.put(self.template.folder / self.other, self.fixture, self.other)
            self.fixture.start(self.other)


_GO_ON: Final = {Seen.ACTS, Seen.MIRRORS}
_PHASES: Final[Mapping[Seen, tuple[str, ...]]] = {
    Seen.NO_HISTORY: ("unborn",),
    Seen.DISPUTED: ("disputed",),
    Seen.LOGS_LOST: ("disputed",),
    Seen.BEHIND: ("fenced", "returning"),
}
_WAITS_FOR: Final[Mapping[Seen, str]] = {
    Seen.NO_HISTORY: "history",
    Seen.DISPUTED: "dispute",
    Seen.LOGS_LOST: "lost_logs",
    Seen.BEHIND: "nobody_acts",
}
_FAULTS: Final[Mapping[Fault, Callable[[Play], None]]] = {
    Fault.OWN: Play.make_nothing,
    Fault.EMPTY: Play.make_empty,
    Fault.OLDER: Play.make_older,
    Fault.FORMER: Play.make_former,
    Fault.EXCHANGED: Play.make_exchanged,
    Fault.COPIED: Play.make_copied,
    Fault.NO_LOGS: Play.make_no_logs,
    Fault.NO_METADATA: Play.make_no_metadata,
    Fault.LOST_LOG: Play.make_lost_log,
    Fault.CLOCK: Play.make_nothing,
}
_WAYS: Final[Mapping[Way, Callable[[Play], None]]] = {
    Way.NONE: Play.leave,
    Way.FAILOVER: Play.fail_over,
    Way.ACCEPT_LOSS: Play.accept_loss,
    Way.OWN_BACK: Play.give_back,
    Way.EMPTIED: Play.empty_it,
}


def _words(expected: Expected, other: str) -> list[str]:
    return [word.format(other=other) for word in expected.words]


def play_all(folder: Path, chosen: Iterable[Run | Scene]) -> list[str]:
    """Play them; print a line each; return what is wrong. What failed keeps its folder."""
    templates = Templates(folder)
    wrong: list[str] = []
    for each in chosen:
        regions = each.regions if isinstance(each, Scene) else 2
        template = templates.of(each.when, regions)
        place = folder / each.name
        began_s = time.monotonic()
        place.mkdir()
        verdict = _verdict(each, template, place)
        click.echo(f"{time.monotonic() - began_s:6.1f} s  {each.name}: {verdict or 'ok'}")
        if verdict:
            wrong.append(f"{each.name}: {verdict} ({place})")
        else:
            shutil.rmtree(place)
    return wrong


def _verdict(chosen: Run | Scene, template: Template, place: Path) -> str:
    """Return what is wrong, empty if nothing is."""
    with template.open(place) as fixture:
        try:
            if isinstance(chosen, Run):
                Play(chosen, template, fixture).through()
            else:
                _play(chosen, template, fixture)
        except (AssertionError, StageError, ApiError, OSError, KafkaException) as error:
            return f"{type(error).__name__}: {error}"
        return "; ".join(fixture.stage.anomalies)


def _play(scene: Scene, template: Template, fixture: Fixture) -> None:
    fixture.link()
    scene.play(Stand(fixture, template))
    primary = fixture.be_whole()
    fixture.write(primary)
    fixture.be_whole()
    fixture.losses_are_named()


def command(plays: Sequence[Run | Scene]) -> click.Command:
    """Return the command line of a collection: it plays all, or some, and ends with 1 if anything is wrong."""

    @click.command()
    @click.option(
        "--case", "words", multiple=True, help="Those whose names contain this; repeatable."
    )
    @click.option("--list", "listed", is_flag=True, help="Print the names, and play none.")
    @click.option("--folder", type=click.Path(path_type=Path), help="Where folders are made.")
    def main(words: tuple[str, ...], *, listed: bool, folder: Path | None) -> None:
        some = [each for each in plays if not words or any(word in each.name for word in words)]
        if listed:
            click.echo("\n".join(each.name for each in some))
            return
        place = Path(tempfile.mkdtemp(prefix="tidemark-faults-", dir=folder))
        click.echo(f"{len(some)} runs in {place}")
        wrong = play_all(place, some)
        click.echo(f"{len(some) - len(wrong)} of {len(some)} are as they should be")
        for text in wrong:
            click.echo(text)
        sys.exit(1 if wrong else 0)

    return main
