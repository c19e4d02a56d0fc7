"""Lets a librdkafka producer go without taking the process with it.

INV-CP13 a producer that met an error is dropped only when no ProduceRequest of it is under way any more, or the
         time allowed is over

librdkafka (source of 2.15.0, behaviour of 2.16.0) frees the text of the transaction's error when the instance ends
(`rd_kafka_txns_term` in rdkafka_txnmgr.c) and leaves the pointer as it was. A ProduceRequest that is answered
INVALID_PRODUCER_EPOCH in the next milliseconds, while its broker thread still runs, frees the same text again
(`rd_kafka_handle_Produce_error`, `rd_kafka_txn_set_fatal_error`): "double free or corruption" or "unaligned
tcache chunk detected", and SIGABRT. confluent-kafka leads there: its error callback makes librdkafka yield at a
fatal error, so `commit_transaction` raises at the first partition that is fenced, with the answers for the others
on their way. Any broker that fences brings it about; librdkafka's own mock broker does.

`purge()` alone is not enough: confluent-kafka 2.15 and 2.16 hand `blocking` on the wrong way round, so by default it
returns before it is done. That all delivery reports are there says that it is: they follow a request's end.

Not here: which errors end a producer (its user's business).
"""

import contextlib
import time
from typing import Final

from confluent_kafka import KafkaException, Producer

RETIRE_TIMEOUT_S: Final = 5.0
_FLUSH_S: Final = 0.05


def retire(producer: Producer, timeout_s: float = RETIRE_TIMEOUT_S) -> int:
    """Give up all that is not answered, and wait until that is done; return how many records still wait.

    The producer must not be used afterwards; its delivery reports come during this call, in this thread.
    """
    deadline_s = time.monotonic() + timeout_s
    while len(producer) and time.monotonic() < deadline_s:
        # Repeated: what a lost connection took with it is queued again. The error was the caller's already.
        with contextlib.suppress(KafkaException):
            producer.purge()
            producer.flush(_FLUSH_S)
    return len(producer)
