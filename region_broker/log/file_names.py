"""What the files of a log are called: a segment's base offset, and what the file is.

Not here: what is in them (`segment`, `indexes/`).
"""

from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
ABORTED_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: the base offset in 20 digits, as Kafka has it."""
    return f"{base_offset:020d}{suffix}"
