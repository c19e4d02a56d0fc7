"""Builds the next value of a transactional id's entry; the value before is never changed.

INV-TT2  `last_producer_epoch` belongs to `previous_producer_id` if there is one, else to `producer_id`:
         it names the pair that a repeated request may still carry (KIP-360)
INV-TT3  `region_epoch` is set where (producer id, epoch) is given to a client, and nowhere else (T22)
INV-TT4  an epoch is bumped at most once per transition, and never past 32767 (C16, P6, P7)
Each function returns the whole new record (prepare); the caller appends it (persist) and only then applies it
(complete).

Not here: whether a transition may happen (`states`, `core`).
"""

from enum import Enum, auto
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator.states import COMMITTING, EPOCH_FENCE, EPOCH_USABLE_MAX, PREPARED, EpochMatch

_NO_TIME: Final = -1
ORPHAN_PREFIX: Final = "\x00orphan-"
"""No client may use such a transactional id; the entry of an orphaned transaction has it (T21)."""


class Stamp(msgspec.Struct, frozen=True):
    """What every transition is stamped with: wall time and the primary region epoch."""

    wall_ms: int
    region_epoch: RegionEpoch


def orphan_id(producer_id: ProducerId) -> str:
    """Return the inner name of the orphan entry of a producer id."""
    return f"{ORPHAN_PREFIX}{producer_id}"


def is_visible(record: TransactionRecord) -> bool:
    """Return whether a client may know of the entry: it has a producer id, and is not being forgotten."""
    named = not record.transactional_id.startswith(ORPHAN_PREFIX)
    return named and record.producer_id >= 0 and record.status is not TxnStatus.DEAD


def unborn(transactional_id: str) -> TransactionRecord:
    """Return the value before the first one: no producer id, never written."""
    return TransactionRecord(
        transactional_id=transactional_id,
        producer_id=NO_PRODUCER_ID,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=0,
        status=TxnStatus.EMPTY,
        partitions=(),
        last_update_ms=0,
        start_ms=_NO_TIME,
    )


class PairMatch(Enum):
    """How the pair that an InitProducerId carries relates to the entry (KIP-360)."""

    NEW_INSTANCE = auto()
    """No pair: a fresh producer; fences whoever had the transactional id."""
    CURRENT = auto()
    RETRY = auto()
    """The pair before the current one: its answer was lost, give the current one again."""
    FENCED = auto()


def match_pair(
    record: TransactionRecord,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    *,
    foreign: bool,
) -> PairMatch:
    """Compare the pair of an InitProducerId; `foreign`: given out before a takeover (T22)."""
    if producer_id == NO_PRODUCER_ID:
        return PairMatch.NEW_INSTANCE
    if record.producer_epoch == NO_PRODUCER_EPOCH:
        return PairMatch.CURRENT  # just created: nobody can be fenced by it
    rotated = record.previous_producer_id != NO_PRODUCER_ID
    last_id = record.previous_producer_id if rotated else record.producer_id
    if producer_id == record.producer_id and producer_epoch == record.producer_epoch:
        return PairMatch.CURRENT
    if producer_id == last_id and producer_epoch == record.last_producer_epoch:
        return PairMatch.RETRY
    # Epochs that the old region gave out above the cut are unknowable, so greater ones are believed.
    if foreign and producer_id == record.producer_id and producer_epoch > record.producer_epoch:
        return PairMatch.CURRENT
    return PairMatch.FENCED


def match_end(
    record: TransactionRecord, producer_id: ProducerId, producer_epoch: ProducerEpoch, tv: int
) -> EpochMatch | None:
    """Compare the pair of an EndTxn; None: another producer id."""
    if producer_id == record.producer_id:
        if producer_epoch == record.producer_epoch:
            return EpochMatch.CURRENT
        bumped_since = producer_epoch == record.producer_epoch - 1
        if tv >= 2 and record.client_tv >= 2 and bumped_since:
            return EpochMatch.RETRY
        return EpochMatch.OTHER
    # A new producer id came with the answer: the epoch ran out, or a takeover fenced the old one (T22).
    renewed = record.producer_epoch == 0 and record.last_producer_epoch == producer_epoch
    was_its_own = producer_id == record.previous_producer_id
    if tv >= 2 and record.client_tv >= 2 and was_its_own and renewed:
        return EpochMatch.RETRY
    return None


def is_exhausted(producer_epoch: ProducerEpoch) -> bool:
    """Return whether no further epoch of this producer id may be given to a client (C16)."""
    return producer_epoch >= EPOCH_USABLE_MAX


def only_fences(producer_epoch: ProducerEpoch) -> bool:
    """Return whether no client may have this epoch: nothing is newer, so that what it wrote could not be fenced (INV-TS3)."""
    return producer_epoch >= EPOCH_FENCE


def bump_epoch(
    record: TransactionRecord, stamp: Stamp, *, timeout_ms: int, keep_last: bool
) -> TransactionRecord:
    """InitProducerId: same producer id, next epoch; `keep_last` lets the same producer retry."""
    assert not is_exhausted(record.producer_epoch), f"INV-TS3: {record.producer_epoch} is the last"
    return replace(
        _idle(record, stamp),
        producer_epoch=record.producer_epoch + 1,
        last_producer_epoch=record.producer_epoch if keep_last else NO_PRODUCER_EPOCH,
        previous_producer_id=NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
    )


def rotate_producer_id(
    record: TransactionRecord,
    stamp: Stamp,
    *,
    producer_id: ProducerId,
    timeout_ms: int,
    retry_epoch: ProducerEpoch,
) -> TransactionRecord:
    """InitProducerId: a new producer id at epoch 0 (first one, exhausted epochs, T22).

    `retry_epoch` is the epoch of the pair that the request carried, NO_PRODUCER_EPOCH for a new instance.
    """
    assert producer_id >= 0, producer_id
    return replace(
        _idle(record, stamp),
        producer_id=producer_id,
        producer_epoch=0,
        previous_producer_id=record.producer_id
        if retry_epoch != NO_PRODUCER_EPOCH
        else NO_PRODUCER_ID,
        last_producer_epoch=retry_epoch,
        timeout_ms=timeout_ms,
    )


def _idle(record: TransactionRecord, stamp: Stamp) -> TransactionRecord:
    return replace(
        record,
        next_producer_id=NO_PRODUCER_ID,
        status=TxnStatus.EMPTY,
        partitions=(),
        last_update_ms=stamp.wall_ms,
        start_ms=_NO_TIME,
        stamp=None,
        decision=None,
        region_epoch=stamp.region_epoch,
    )


def join_partitions(
    record: TransactionRecord, stamp: Stamp, *, partitions: tuple[TopicPartition, ...], tv: int
) -> TransactionRecord:
    """AddPartitions: the transaction begins, or grows by `partitions` (all new to it).

    Those of one topic stand together: a record names a topic once for each run of them, so that those of two topics that join by
    turns would make it name each topic for each partition.
    """
    assert partitions, f"{record.transactional_id} begins, or grows by nothing"
    if record.status is TxnStatus.ONGOING:
        return replace(
            record,
            partitions=_grouped(record.partitions + partitions),
            last_update_ms=stamp.wall_ms,
            client_tv=tv,
        )
    return replace(
        record,
        status=TxnStatus.ONGOING,
        partitions=_grouped(partitions),
        last_update_ms=stamp.wall_ms,
        start_ms=stamp.wall_ms,
        stamp=None,
        decision=None,
        client_tv=tv,
    )


def _grouped(partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
    """Return them with those of one topic together, topics and partitions in the order of their first."""
    of_topic: dict[TopicName, list[TopicPartition]] = {}
    for tp in partitions:
        of_topic.setdefault(tp.topic, []).append(tp)
    return tuple(chain.from_iterable(of_topic.values()))


class Decision(msgspec.Struct, frozen=True):
    """What EndTxn decides: the result, the client's generation, the round of the decision (T2).

    `next_producer_id` is a fresh id if the epoch runs out with this decision, else NO_PRODUCER_ID.
    """

    commit: bool
    tv: int
    round: Round
    next_producer_id: ProducerId = NO_PRODUCER_ID


def prepare_end(record: TransactionRecord, stamp: Stamp, decision: Decision) -> TransactionRecord:
    """EndTxn: the decision. Under TV2 the epoch moves on with it (KIP-890), under TV1 it stays."""
    decided = replace(
        record,
        status=TxnStatus.PREPARE_COMMIT if decision.commit else TxnStatus.PREPARE_ABORT,
        partitions=record.partitions if record.status is TxnStatus.ONGOING else (),
        last_update_ms=stamp.wall_ms,
        start_ms=record.start_ms if record.status is TxnStatus.ONGOING else stamp.wall_ms,
        stamp=decision.round,
        decision=None,
        client_tv=decision.tv,
    )
    if decision.tv < 2:
        return decided
    assert record.producer_epoch < EPOCH_FENCE, f"INV-TT4: {record.producer_epoch} is the last"
    assert is_exhausted(record.producer_epoch) == (decision.next_producer_id != NO_PRODUCER_ID)
    return replace(
        decided,
        producer_epoch=record.producer_epoch + 1,
        last_producer_epoch=record.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=decision.next_producer_id,
        region_epoch=stamp.region_epoch,
    )


def prepare_new_producer(
    record: TransactionRecord,
    stamp: Stamp,
    *,
    producer_epoch: ProducerEpoch,
    round_: Round,
    next_producer_id: ProducerId,
) -> TransactionRecord:
    """EndTxn(abort) after a takeover: nothing is open, a new producer id comes into force with COMPLETE_ABORT.

    `producer_epoch` is that of the request: if it is repeated, it is recognised by it.
    """
    assert record.status is not TxnStatus.ONGOING, f"INV-TC7: {record.status}"
    assert next_producer_id >= 0, f"INV-TC7: no new producer id for {record.transactional_id}"
    return replace(
        record,
        status=TxnStatus.PREPARE_ABORT,
        partitions=(),
        producer_epoch=min(max(record.producer_epoch, producer_epoch) + 1, EPOCH_FENCE),
        last_producer_epoch=producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
        last_update_ms=stamp.wall_ms,
        start_ms=stamp.wall_ms,
        stamp=round_,
        decision=None,
        client_tv=2,
        region_epoch=stamp.region_epoch,
    )


def fence_needs_producer_id(record: TransactionRecord) -> bool:
    """Return whether fencing this entry uses up its last epoch (KAFKA-20090)."""
    return is_exhausted(record.producer_epoch)


def prepare_fence(
    record: TransactionRecord,
    wall_ms: int,
    *,
    round_: Round,
    next_producer_id: ProducerId,
    keep_last: bool,
) -> TransactionRecord:
    """Abort an ongoing transaction on the server's behalf and fence its producer by one bump (P7).

    `keep_last`: the producer itself asked (InitProducerId with its pair) and may go on. A new
    producer id comes into force with COMPLETE_ABORT.
    """
    assert record.status is TxnStatus.ONGOING, record.status
    return replace(
        record,
        status=TxnStatus.PREPARE_ABORT,
        producer_epoch=min(record.producer_epoch + 1, EPOCH_FENCE),
        last_producer_epoch=record.producer_epoch if keep_last else NO_PRODUCER_EPOCH,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
        last_update_ms=wall_ms,
        stamp=round_,
        decision=None,
    )


def prepare_orphan(
    record: TransactionRecord,
    wall_ms: int,
    *,
    round_: Round,
    pair: ProducerPair,
    partitions: tuple[TopicPartition, ...],
) -> TransactionRecord:
    """The outcome of a transaction that only partitions know: aborted, its `pair` fenced (T21)."""
    producer_id, producer_epoch = pair
    assert producer_id >= 0, f"INV-TA1: a transaction without a producer: {pair}"
    assert partitions, f"INV-TA1: {pair} has nothing open"
    return replace(
        record,
        producer_id=producer_id,
        producer_epoch=min(producer_epoch + 1, EPOCH_FENCE),
        status=TxnStatus.PREPARE_ABORT,
        partitions=partitions,
        last_update_ms=wall_ms,
        start_ms=wall_ms,
        stamp=round_,
        decision=None,
    )


def complete(record: TransactionRecord, decision: DecisionId, wall_ms: int) -> TransactionRecord:
    """All markers are written: PREPARE_x becomes COMPLETE_x and keeps the decision id (T2).

    A waiting producer id takes over here; `last_producer_epoch` stays what the client last saw.
    """
    assert record.status in PREPARED, record.status
    assert record.stamp in {None, decision.stamp}, (
        f"INV-TC4: decided in {record.stamp}, not {decision}"
    )
    done = replace(
        record,
        status=(
            TxnStatus.COMPLETE_COMMIT
            if record.status is TxnStatus.PREPARE_COMMIT
            else TxnStatus.COMPLETE_ABORT
        ),
        partitions=(),
        last_update_ms=wall_ms,
        decision=decision,
    )
    if record.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=record.next_producer_id,
        producer_epoch=0,
        previous_producer_id=record.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def pair_for_next(record: TransactionRecord) -> ProducerPair:
    """Return the pair that the next transaction of this producer uses (EndTxn v5)."""
    if record.next_producer_id != NO_PRODUCER_ID:
        return record.next_producer_id, ProducerEpoch(0)
    return record.producer_id, record.producer_epoch


def decided_commit(record: TransactionRecord) -> bool:
    """Return whether the entry's last decision is a commit; only for decided entries."""
    return record.status in COMMITTING
