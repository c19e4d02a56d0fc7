"""What is told of a change of topics, configs, access or levels that the metadata could not take.

INV-UNW1  where the quorum is away the answer is REQUEST_TIMED_OUT, as Kafka's is, and says so: no disk is at fault, and the change may be
          made yet. Where the metadata cannot be written it is KAFKA_STORAGE_ERROR, with the reason
Not here: what is refused by a rule (the handlers).
"""

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnsettled, MetadataUnwritable


def unwritten(error: MetadataUnwritable) -> tuple[ErrorCode, str]:
    """Return Kafka's error, and the text."""
    if isinstance(error, MetadataUnsettled):
        return ErrorCode.request_timed_out, str(error)
    return ErrorCode.kafka_storage_error, str(error)
