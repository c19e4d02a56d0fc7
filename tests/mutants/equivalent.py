"""Mutants that change nothing that anybody could see, each with the reason: they are drawn, and not asked about.

A test holds that each of them still is a mutant of its module.
"""

from dataclasses import dataclass
from typing import Final

from tests.mutants.operators import Mutant


@dataclass(frozen=True, slots=True)
class Equivalent:
    """`was` at some place of a module reads `now`; `reason` says why that is the same behaviour."""

    path: str
    function: str
    was: str
    now: str
    reason: str


EQUIVALENT: Final[tuple[Equivalent, ...]] = (
    Equivalent(
        "geo_replicator/tidemark.py", "Tidemark", "0", "(-1)",
        "the product builds no tidemark without its time: the default is for tests of other things",
    ),
)  # fmt: skip


def reason_for(mutant: Mutant, source: str) -> str | None:
    """Return why a mutant is equivalent, None where nobody said so."""
    for known in EQUIVALENT:
        if is_the_mutant(known, mutant, source):
            return known.reason
    return None


def is_the_mutant(known: Equivalent, mutant: Mutant, source: str) -> bool:
    """Return whether an entry means this mutant."""
    change = (known.path, known.was, known.now)
    return change == (mutant.path, mutant.was(source), mutant.replacement) and (
        known.function == mutant.function(source)
    )
