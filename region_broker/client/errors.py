"""What can go wrong for a client, in terms that decide what to do next.

Every error says whether the same call may be tried again (`retriable`) and whether the write may have happened all the
same (`maybe_written`): what an application must know, and what Kafka's error codes leave to guessing; never are both
true.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

Result = TypeVar("Result")


class TidemarkError(Exception):
    """Base of all client errors. `code` is the Kafka error name behind it, where there is one."""

    retriable = False
    maybe_written = False

    def __init__(self, text: str, *, code: str = "") -> None:
        """Keep the text for people and the code for programs."""
        super().__init__(text)
        self.code: Final = code


class Unreachable(TidemarkError):
    """No region answered in time, and nothing was written: trying again is safe."""

    retriable = True


class TransactionAborted(TidemarkError):
    """The transaction was rolled back as a whole; nothing of it will ever be read. Run it again.

    Where it commits a consumer's position: `rewind` the consumer first, and run it from what is read then.
    """

    retriable = True


class OutcomeUnknown(TidemarkError):
    """The commit was asked for and nobody could say what became of it: ask `verdict(transaction)` before repeating."""

    maybe_written = True


class Fenced(TidemarkError):
    """Another producer with the same transactional id has taken over: this one must stop.

    `maybe_written`: its last transaction had been sent and nobody could say what became of it.
    """

    def __init__(self, text: str, *, code: str = "", maybe_written: bool = False) -> None:
        """Keep what is known of the last transaction."""
        super().__init__(text, code=code)
        self.maybe_written = maybe_written


class Refused(TidemarkError):
    """The request is wrong and would be refused again; the text says what is wrong with it."""


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the `KafkaError` inside an exception of confluent-kafka."""
    inner = error.args[0]
    assert isinstance(inner, KafkaError), inner
    return inner


def unmasked(call: Callable[..., Result], *arguments: object) -> Result:
    """Return `call(*arguments)`, raising KafkaException where a fatal error strikes within it.

    confluent-kafka raises a fatal error from its error callback; if a delivery report follows in the same
    poll, Python finds an exception set and makes a SystemError of it, with the true one as its cause.
    """
    try:
        return call(*arguments)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_REQUEST,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._AUTHENTICATION,
    }
)
"""Errors that the same request would meet again."""

MEMBERSHIP_LOST: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""The consumer whose position a transaction commits is not the member that read it any more (KIP-447)."""
