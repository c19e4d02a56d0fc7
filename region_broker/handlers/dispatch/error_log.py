"""Which answered errors become a line in the log: what an operator would act on, once, with the request to look for.

INV-EL1  an error that this node is the cause of is a warning; one that ends a client's transaction or its producer is
         told at level info; all others, which clients meet every day, only at level debug
INV-EL2  at most one line per API, error and ten seconds above debug; the next one says how many were left out

Not here: counting all of them (`region_broker.metrics`), finding them in an answer (`answered_errors`).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from idempotency.ports import Clock
from region_broker.wire.request_trace import Trace

_LOG: Final = logging.getLogger(__name__)
QUIET_MS: Final = 10_000
_DISK: Final = "an error of the disk"
_NODE_FAULTS: Final = frozenset(
    error.name
    for error in (
        ErrorCode.unknown_server_error, ErrorCode.kafka_storage_error, ErrorCode.request_timed_out,
        ErrorCode.coordinator_not_available,
    )
)  # fmt: skip
# The node's own where a reader gets it; a producer that gets it sent it (CRC of a batch).
_FAULTS_OF_READS: Final = frozenset({ErrorCode.corrupt_message.name})
_ENDED_PRODUCERS: Final = frozenset(
    error.name
    for error in (
        ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state,
        ErrorCode.out_of_order_sequence_number, ErrorCode.transaction_abortable,
        ErrorCode.invalid_producer_id_mapping,
    )
)  # fmt: skip
_READS: Final = frozenset({"Fetch", "ListOffsets"})


@dataclass(slots=True)
class _Told:
    """When an error was told last, and how often it came since."""

    at_ms: int
    left_out: int = 0


class ErrorLog:
    """One per node: it remembers what was told lately, a place per API and error."""

    def __init__(self, clock: Clock) -> None:
        """Measure quiet by the monotonic time of `clock`."""
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}

    def answered(self, api: str, names: Iterable[str], trace: Callable[[], Trace]) -> None:
        """Tell of an answer with these error codes; `trace` is asked only if a line is written."""
        for name in dict.fromkeys(names):
            level = _level(api, name)
            if not _LOG.isEnabledFor(level):
                continue
            left_out = self._left_out(api, name) if level > logging.DEBUG else 0
            if left_out is None:
                continue
            _LOG.log(
                level,
                "%s was answered with %s", api, name.upper(),
                extra={**trace(), "error": name.upper(), "left_out": left_out},
            )  # fmt: skip

    def failed(self, api: str, reason: str, trace: Callable[[], Trace]) -> None:
        """Tell that a request could not be executed at all, because of `reason`."""
        left_out = self._left_out(api, "")
        if left_out is not None:
            extra = {**trace(), "left_out": left_out}
            _LOG.warning("%s was not executed: %s", api, reason, extra=extra)

    def disk(self, api: str, client: str) -> None:
        """Tell of an error of the disk, which is being handled: each request may meet it while the disk is full."""
        left_out = self._left_out(api, _DISK)
        if left_out is not None:
            extra = {"left_out": left_out}
            _LOG.exception("%s from %s met an error of the disk", api, client, extra=extra)

    def _left_out(self, api: str, name: str) -> int | None:
        """Return how many lines like this were left out since the last; None: leave this one out, too."""
        now_ms = self._clock.monotonic_ms()
        told = self._told.get((api, name))
        if told is not None and now_ms - told.at_ms < QUIET_MS:
            told.left_out += 1
            return None
        self._told[api, name] = _Told(now_ms)
        return 0 if told is None else told.left_out


def _level(api: str, name: str) -> int:
    if name in _NODE_FAULTS or (api in _READS and name in _FAULTS_OF_READS):
        return logging.WARNING
    return logging.INFO if name in _ENDED_PRODUCERS else logging.DEBUG
