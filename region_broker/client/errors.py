"""What can go wrong for a client, in terms that decide what to do next.

Every error says whether the same call may be tried again (`retriable`) and whether the write may have
happened all the same (`maybe_written`): the two questions an application must answer, and the two that
Kafka's error codes leave to guessing.
"""

from confluent_kafka import KafkaError, KafkaException


class TidemarkError(Exception):
    """Base of all client errors. `code` is the Kafka error name behind it, where there is one."""

    retriable = False
    maybe_written = False

    def __init__(self, text: str, *, code: str = "") -> None:
        """Keep the text for people and the code for programs."""
        super().__init__(text)
        self.code = code


class Unreachable(TidemarkError):
    """No region answered in time, before anything was sent: trying again is safe."""

    retriable = True


class TransactionAborted(TidemarkError):
    """The transaction was rolled back as a whole; nothing of it will ever be read. Run it again."""

    retriable = True


class OutcomeUnknown(TidemarkError):
    """The commit was asked for and no answer came: ask `verdict()` before anything is repeated."""

    maybe_written = True


class Fenced(TidemarkError):
    """Another producer with the same transactional id has taken over: this one must stop."""


class Refused(TidemarkError):
    """The broker refused the request for good; the text says what is wrong with it."""


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the `KafkaError` inside an exception of confluent-kafka."""
    inner = error.args[0]
    assert isinstance(inner, KafkaError), inner
    return inner
