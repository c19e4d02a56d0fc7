"""What of the tests goes to one worker as a whole: a file, as with xdist's `loadfile`; and of `tests/compat/` all that is played at one place.

INV-TWU1  tests of `tests/compat/` that name a place go to the worker of that place, whatever file they stand in: its nodes are started once for all of them
INV-TWU2  every other test goes where its file goes

Nodes of a region of three take 2 s of CPU until they serve, and a quarter of a core between them while nobody asks. As long as each file started them, and each
worker had its own, that was a tenth of what the tests of `tests/compat/` cost.
Not here: in which order units are begun (`tests.conftest`).
"""

from xdist.scheduler import LoadFileScheduling

from tests.compat.places import PLACES

_AT_PLACES = "tests/compat/"


def unit_of(nodeid: str) -> str:
    """Return the name of the unit that a test belongs to: a path, or a place."""
    path = nodeid.split("::", 1)[0]
    if not path.startswith(_AT_PLACES) or "[" not in nodeid:
        return path
    first_parameter = nodeid.split("[", 1)[1].rstrip("]").split("-", 1)[0]
    return f"{_AT_PLACES}[{first_parameter}]" if first_parameter in PLACES else path


class WorkUnits(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives units to workers, the first ones first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
