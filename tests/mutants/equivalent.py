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
    Equivalent(
        "region_broker/ledgers/marker_channel.py", "PartitionMarkerChannel._write_to", "0", "(1)",
        "a marker that was written ends at offset 1 or above, and nothing is waited for without one",
    ),
    Equivalent(
        "geo_replicator/events.py", "PrimaryLogEnd", "1", "(2)",
        "the start of readers is asked for being 0 or above, nothing else below that",
    ),
    Equivalent(
        "idempotency/verdicts.py", "Judgement", "1", "(0)",
        "the time is read of duplicates only, and those always bring theirs",
    ),
    Equivalent(
        "region_broker/groups/modern/patterns/topic_regex.py", "_Program.new_state", "1", "(0)",
        "states are told apart by their numbers, and counted by another one: they may begin at any",
    ),
    Equivalent(
        "txn_coordinator/settings.py", "TxnSettings", "3_600_000", "(3599999)",
        "how often expired ids are looked for; whether one has expired is asked of its own time",
    ),
    Equivalent(
        "txn_coordinator/events.py", "AddPartitionsReceived", "1", "(0)",
        "the product says the client's generation each time: the default is for tests of other things",
    ),
    Equivalent(
        "geo_replicator/ports.py", "SentSlice", "0", "(-1)",
        "below it a log was cleaned: no offset lies below 0",
    ),
    Equivalent(
        "region_broker/region/mirror/mirror_view.py", "MirrorView._with_forgotten", "0", "(-1)",
        "what was forgotten from some offset up to 0, or up to -1, holds no record",
    ),
    Equivalent(
        "idempotency/snapshot_codec.py", "_rows",
        'raise SnapshotError(f"snapshot body ends before its {count} rows: rebuild it from the log")', "pass",
        "rows that lack are a SnapshotError of `unpack` in any case: they end inside one, or behind the body",
    ),
    Equivalent(
        "txn_coordinator/rounds.py", "RoundGate.__init__", "1", "(2)",
        "where a round begins that is not in the ledger yet is asked for being 0 or above, nothing else below that",
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
