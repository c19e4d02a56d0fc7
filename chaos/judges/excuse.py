"""What a failover's word may have cost: the one question that every judge asks about what is gone.

Not here: the answer (`chaos.shuffle.judge.covered`).
"""

from collections.abc import Callable, Sequence

from chaos.story import Sighting

Excuse = Callable[[Sighting, Sequence[Sighting]], bool]
"""Whether what was acknowledged or shown may be gone; the second are all sightings that say the same or more."""


def nothing_is_excused(_gone: Sighting, _alike: Sequence[Sighting]) -> bool:
    """See `Excuse`: of a run without failovers."""
    return False
