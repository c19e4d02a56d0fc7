"""Region epochs and leader epochs, and how they are ordered over regions (T19).

    region epoch   = n << 3 | region ordinal     n is one more than any known (12 bits), ordinal 0..7
    leader epoch   = region epoch << 16 | counter               31 bits: never negative in an int32

INV-F1  Two regions never make the same leader epoch: their ordinals differ.
INV-F2  Every leader epoch of a later region epoch is greater than all of an earlier one.
INV-F3  Exhaustion fails closed: no function here wraps.

Not here: who may take a new region epoch (geo_replicator.directory), verdicts on batches, producer epochs (txn_coordinator.states).
Source: KIP-101, KIP-320 (leader epochs).
"""

from typing import Final

from idempotency.identity import LeaderEpoch, RegionEpoch

REGION_ORDINAL_BITS: Final = 3
REGION_NUMBER_BITS: Final = 12
LEADER_COUNTER_BITS: Final = 16
FIRST_REGION_NUMBER: Final = 1
"""The number of the region epoch that a cluster is born with."""
REGION_ORDINAL_MAX: Final = (1 << REGION_ORDINAL_BITS) - 1
REGION_NUMBER_MAX: Final = (1 << REGION_NUMBER_BITS) - 1
REGION_EPOCH_MAX: Final = REGION_NUMBER_MAX << REGION_ORDINAL_BITS | REGION_ORDINAL_MAX
LEADER_COUNTER_MAX: Final = (1 << LEADER_COUNTER_BITS) - 1

assert REGION_NUMBER_BITS + REGION_ORDINAL_BITS + LEADER_COUNTER_BITS == 31, "int32 on the wire"


class EpochExhausted(RuntimeError):
    """An epoch has no successor; going on with a used one could let two writers write as one."""


def region_epoch(n: int, ordinal: int) -> RegionEpoch:
    """Return the region epoch number `n` (from 1) of the region with `ordinal` (0..7).

    Raises:
        EpochExhausted: `n` needs more than 12 bits.
    """
    assert n >= 0, n
    assert 0 <= ordinal <= REGION_ORDINAL_MAX, ordinal
    if n > REGION_NUMBER_MAX:
        raise EpochExhausted(
            f"region epoch number {n} exceeds {REGION_NUMBER_MAX}: no more takeovers are possible "
            "in this domain, move its topics to a new domain"
        )
    return RegionEpoch(n << REGION_ORDINAL_BITS | ordinal)


def leader_epoch(region_epoch: RegionEpoch, counter: int) -> LeaderEpoch:
    """Return the leader epoch number `counter` (from 0) within `region_epoch`.

    Raises:
        EpochExhausted: `counter` needs more than 16 bits.
    """
    assert 0 <= region_epoch >> REGION_ORDINAL_BITS <= REGION_NUMBER_MAX, region_epoch
    assert counter >= 0, counter
    if counter > LEADER_COUNTER_MAX:
        raise EpochExhausted(
            f"leader epoch counter {counter} exceeds {LEADER_COUNTER_MAX} within region epoch "
            f"{region_epoch}: another region has to take over, under a new region epoch"
        )
    return LeaderEpoch(region_epoch << LEADER_COUNTER_BITS | counter)


FIRST_TERM_COUNTER: Final = 1
"""The counter of the first term of a region epoch: nothing is written under an earlier one."""
FIRST_LEADER_EPOCH: Final = leader_epoch(region_epoch(FIRST_REGION_NUMBER, 0), 0)
"""The smallest that any region of any domain ever writes under: region epochs are numbered from 1."""


def next_region_epoch(known_max: int, ordinal: int) -> RegionEpoch:
    """Return the region's epoch after the greatest one that anyone knows (-1: none) (T19)."""
    known_number = known_max >> REGION_ORDINAL_BITS if known_max >= 0 else 0
    return region_epoch(known_number + 1, ordinal)


def region_number_of(region_epoch: RegionEpoch) -> int:
    """Return n of a region epoch."""
    return region_epoch >> REGION_ORDINAL_BITS


def region_ordinal_of(region_epoch: RegionEpoch) -> int:
    """Return the ordinal of the region that holds a region epoch."""
    return region_epoch & REGION_ORDINAL_MAX


def region_epoch_of(leader_epoch: LeaderEpoch) -> RegionEpoch:
    """Return the region epoch that a leader epoch belongs to; -1 stays -1."""
    return RegionEpoch(leader_epoch >> LEADER_COUNTER_BITS)


def leader_counter_of(leader_epoch: LeaderEpoch) -> int:
    """Return the counter of a leader epoch within its region epoch."""
    return leader_epoch & LEADER_COUNTER_MAX
