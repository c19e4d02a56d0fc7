"""What a play is given, and a play as one row of docs/FAULTS.md.

Each play begins with regions that do not run and hold the same, and ends with all of them up and whole. Its first line
is its line in the document. `fixture.kept` is what must be there in the end; what an operator's word took away is given
up, and must be named by `region losses`.

Not here: the plays (`regions`, `retention`, `disks`), who judges their ends (`runner`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tests.process.faults.cases import When
from tests.process.faults.fixture import Fixture, Template


@dataclass(frozen=True, slots=True)
class Stand:
    """What a play is given: regions that do not run, with links between them."""

    fixture: Fixture
    template: Template

    @property
    def primary(self) -> str:
        """Who acted last."""
        return self.template.primary

    @property
    def mirror(self) -> str:
        """The first of those that mirrored it."""
        return self.template.mirror

    def start(self) -> None:
        """Start all; return when the primary acts and all others have copied all."""
        for name in (self.primary, *self.template.mirrors):
            self.fixture.start(name)
        self.fixture.settle()

    def admin(self, name: str | None = None) -> AdminClient:
        """Return an administrator's client at the primary, or at another region."""
        place = self.fixture.stage.cluster.place(name or self.primary)
        return AdminClient({"bootstrap.servers": place.bootstrap, "log_level": 0})

    def fail_over(self, to: str) -> None:
        """Give an operator's word."""
        self.fixture.tidemark("region", "failover", "--yes", "--to", to)


@dataclass(frozen=True, slots=True)
class Scene:
    """A play, and the regions that it begins with."""

    play: Callable[[Stand], None]
    when: When = When.BEFORE
    regions: int = 2

    @property
    def name(self) -> str:
        """Return what `--case` and the lines of a run say."""
        return self.play.__name__.replace("_", "-")

    @property
    def says(self) -> str:
        """Return its line in the document."""
        return (self.play.__doc__ or "").strip().splitlines()[0]
