"""What happened when: the demo prints as it goes, and keeps it for the report."""

import time
from dataclasses import dataclass, field

import click


@dataclass(frozen=True, slots=True)
class Moment:
    """One event: `at_s` since the start of the demo; `mark` puts it on the chart."""

    at_s: float
    text: str
    mark: str = ""


@dataclass(slots=True)
class Story:
    """The demo's timeline."""

    quiet: bool = False
    start_s: float = field(default_factory=time.monotonic)
    moments: list[Moment] = field(default_factory=list)

    def tell(self, text: str, mark: str = "") -> None:
        """Print one line and keep it."""
        moment = Moment(time.monotonic() - self.start_s, text, mark)
        self.moments.append(moment)
        if not self.quiet:
            click.echo(f"{moment.at_s:6.1f} s  {text}", err=False)

    def progress(self, text: str) -> None:
        """Print one line that is not worth keeping: something is going on."""
        if not self.quiet:
            click.echo(f"{time.monotonic() - self.start_s:6.1f} s    {text}", err=False)

    def since_start(self, at_s: float) -> float:
        """Return a monotonic time as seconds of the demo."""
        return at_s - self.start_s
