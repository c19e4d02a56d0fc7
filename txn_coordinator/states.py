"""The states of a transaction, the legal transitions, and the EndTxn tables: all as data.

INV-TS1  every change of an entry goes through `check_transition`; a pair absent from
         `VALID_PREVIOUS` is a programmer error (C14)
INV-TS2  what EndTxn does depends only on (client generation, state, which epoch was sent, result);
         the two tables are C17 (TV1) and C18 (TV2)
INV-TS3  a client never uses an epoch above EPOCH_USABLE_MAX; 32767 only fences (C16). Where an adoption has fenced with it, which
         takes no new producer id, the producer's EndTxn(abort) or InitProducerId does, and no partition joins before

Kafka's PREPARE_EPOCH_FENCE is never written here: a fence is one transition to PREPARE_ABORT that
bumps the epoch once (P7), not two.
Not here: building the records (`transitions`), order of checks (`core`).
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from idempotency.ledger_records import TxnStatus

S = TxnStatus

EPOCH_USABLE_MAX: Final = 32_766
EPOCH_FENCE: Final = 32_767

VALID_PREVIOUS: Final[Mapping[TxnStatus, frozenset[TxnStatus]]] = {
    S.EMPTY: frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.ONGOING: frozenset({S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.PREPARE_COMMIT: frozenset({S.ONGOING}),
    # Under TV2 a producer may abort without having added a partition: it wants the next epoch.
    S.PREPARE_ABORT: frozenset({S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.COMPLETE_COMMIT: frozenset({S.PREPARE_COMMIT}),
    S.COMPLETE_ABORT: frozenset({S.PREPARE_ABORT}),
    S.DEAD: frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.PREPARE_EPOCH_FENCE: frozenset(),
}

PREPARED: Final = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
COMPLETED: Final = (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
COMMITTING: Final = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)


def check_transition(previous: TxnStatus, target: TxnStatus) -> None:
    """Assert that `previous` -> `target` is legal (C14); a failure is a bug of the coordinator."""
    assert previous in VALID_PREVIOUS[target], (previous, target)


class EpochMatch(Enum):
    """How the pair of an EndTxn relates to the entry's."""

    CURRENT = auto()
    RETRY = auto()
    """The entry was bumped once since: the same EndTxn again (TV2 only)."""
    OTHER = auto()


class EndAction(Enum):
    """What EndTxn does."""

    PREPARE = auto()
    """Decide: write PREPARE_COMMIT or PREPARE_ABORT."""
    DONE = auto()
    """Already so: answer success (with the current pair under TV2)."""
    CONCURRENT = auto()
    """The same decision is being carried out: the client asks again."""
    INVALID_STATE = auto()
    """The other decision was taken, or there is nothing to end."""
    FENCED = auto()
    """The epoch is not the entry's: another instance of the producer has it."""


_CUR = EpochMatch.CURRENT
_RETRY = EpochMatch.RETRY
_Key = tuple[TxnStatus, bool, EpochMatch]
"""(state, commit?, epoch match)"""

END_TV1: Final[Mapping[_Key, EndAction]] = {
    (S.EMPTY, True, _CUR): EndAction.INVALID_STATE,
    (S.EMPTY, False, _CUR): EndAction.INVALID_STATE,
    (S.ONGOING, True, _CUR): EndAction.PREPARE,
    (S.ONGOING, False, _CUR): EndAction.PREPARE,
    (S.PREPARE_COMMIT, True, _CUR): EndAction.CONCURRENT,
    (S.PREPARE_COMMIT, False, _CUR): EndAction.INVALID_STATE,
    (S.PREPARE_ABORT, True, _CUR): EndAction.INVALID_STATE,
    (S.PREPARE_ABORT, False, _CUR): EndAction.CONCURRENT,
    (S.COMPLETE_COMMIT, True, _CUR): EndAction.DONE,
    (S.COMPLETE_COMMIT, False, _CUR): EndAction.INVALID_STATE,
    (S.COMPLETE_ABORT, True, _CUR): EndAction.INVALID_STATE,
    (S.COMPLETE_ABORT, False, _CUR): EndAction.DONE,
}
"""C17. An epoch that is not the current one is always FENCED (P11: also a greater one)."""

END_TV2: Final[Mapping[_Key, EndAction]] = {
    (S.EMPTY, True, _CUR): EndAction.INVALID_STATE,
    (S.EMPTY, False, _CUR): EndAction.PREPARE,
    (S.ONGOING, True, _CUR): EndAction.PREPARE,
    (S.ONGOING, False, _CUR): EndAction.PREPARE,
    (S.PREPARE_COMMIT, True, _RETRY): EndAction.CONCURRENT,
    (S.PREPARE_COMMIT, False, _RETRY): EndAction.INVALID_STATE,
    (S.PREPARE_ABORT, True, _RETRY): EndAction.INVALID_STATE,
    (S.PREPARE_ABORT, False, _RETRY): EndAction.CONCURRENT,
    (S.COMPLETE_COMMIT, True, _CUR): EndAction.INVALID_STATE,
    (S.COMPLETE_COMMIT, False, _CUR): EndAction.PREPARE,
    (S.COMPLETE_COMMIT, True, _RETRY): EndAction.DONE,
    (S.COMPLETE_COMMIT, False, _RETRY): EndAction.INVALID_STATE,
    (S.COMPLETE_ABORT, True, _CUR): EndAction.INVALID_STATE,
    (S.COMPLETE_ABORT, False, _CUR): EndAction.PREPARE,
    (S.COMPLETE_ABORT, True, _RETRY): EndAction.INVALID_STATE,
    (S.COMPLETE_ABORT, False, _RETRY): EndAction.DONE,
}
"""C18. Pairs that are absent are FENCED: Ongoing and Empty take the current epoch only, PREPARE_*
only the retry (the epoch was bumped when the decision was written)."""


def end_action(*, tv: int, status: TxnStatus, commit: bool, match: EpochMatch) -> EndAction:
    """Return what EndTxn of a client of generation `tv` (1 or 2) does (C17, C18)."""
    table = END_TV2 if tv >= 2 else END_TV1
    return table.get((status, commit, match), EndAction.FENCED)
