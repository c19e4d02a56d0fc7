"""What a topic makes of a fresh batch before it is written: its times judged or stamped, its codec changed.

INV-FIT2  what takes long is done ahead and off the event loop (`work_bytes`, `prepared`); a batch that was not prepared,
         or under other rules than those in force now, is treated all the same when it is appended
INV-FIT3  whether a batch is in the log already is asked first, of the bytes that were sent: rules that have changed since, `max.message.bytes`
         among them, refuse no retry of what is there
INV-FIT4  a topic with `tidemark.encryption` has every fresh batch sealed here, as the last thing done to it: what is written, to the log and to
         the journal, is sealed, by keys that are here as it is written: what was sealed ahead, and its version destroyed meanwhile, nobody
         could read. Where the key is not here nothing is written. Markers and ledgers are written elsewhere, and are plain
A batch is judged by its header; records are looked at only where `compression.type` asks for another codec than the
batch has, by that codec, and in compacted topics, for their keys.

A batch's header names its first and its highest timestamp. `message.timestamp.before.max.ms` is held against the
first, where Kafka looks at every record: a record that is older than the first one of its batch passes.
Source: Kafka LogValidator.java, UnifiedLog.scala `append` (sizes).
Not here: what every client batch must be (`admission`), how it is rewritten (`records.batch_rewrite`).
"""

from typing import Final, NamedTuple

from idempotency.record_batch import (
    LOG_APPEND_TIME_BIT,
    BatchError,
    BatchHeader,
    Buffer,
    read_header,
)
from region_broker.limits import DECOMPRESSED_BYTES_MAX, RECORD_ERRORS_MAX, SEALED_INLINE_BYTES_MAX
from region_broker.log.cleaning.batch_filter import open_body, walk
from region_broker.log.log_config import LogConfig, RecordRules
from region_broker.partitions.admission import (
    AppendOutcome,
    AppendVerdict,
    check_client_batch,
    too_large,
)
from region_broker.records.batch_rewrite import recompressed, with_append_time
from region_broker.records.batches import RecordsError
from region_broker.records.compression import Codec
from region_broker.security.sealing.data_keys import KeyNotHere
from region_broker.security.sealing.sealed_batch import LogPlace
from region_broker.security.sealing.sealing import Sealing

NO_TIMESTAMP_MS: Final = -1
RECOMPRESSED_INLINE_BYTES_MAX: Final = 8 * 1024
"""Of all batches that one step appends: 2.5 ms by zstd's level 22, and as much again for the keys of the smallest records."""
_NOT_INLINE: Final = DECOMPRESSED_BYTES_MAX


def work_bytes(data: Buffer, config: LogConfig) -> int:
    """Return how many bytes of records are looked at to append the batch; above RECOMPRESSED_INLINE_BYTES_MAX, as for a sum of
    several, `prepared` should be run in a thread before.
    """
    codec = config.records.codec
    if config.encryption and len(data) > SEALED_INLINE_BYTES_MAX:
        return _NOT_INLINE
    if codec is None and not config.compacts:
        return 0
    try:
        header = read_header(data)
    except BatchError:
        return 0
    if header.codec == codec and not config.compacts:
        return 0
    # How much a compressed batch holds is known only when it is open.
    return len(data) if header.codec == Codec.NONE else _NOT_INLINE


class Prepared(NamedTuple):
    """What became of a batch under the rules of `config`: in the topic's codec, or why it is refused."""

    config: LogConfig
    made: Buffer | AppendOutcome
    keys: object = None
    """By which named keys it was sealed, None where it was not."""


class Seal(NamedTuple):
    """What seals the batches of one log."""

    sealing: Sealing
    place: LogPlace

    def put(self, data: Buffer, header: BatchHeader, config: LogConfig) -> Buffer | AppendOutcome:
        """Return a batch sealed as its topic asks, or why it is not to be written."""
        try:
            return self.sealing.sealed(data, header, self.place, config.encryption)
        except KeyNotHere as error:
            detail = f"the topic is sealed (tidemark.encryption): {error}"
            return AppendOutcome(AppendVerdict.KEY_NOT_HERE, detail=detail)


def prepared(data: Buffer, config: LogConfig, seal: Seal) -> Prepared:
    """Do ahead what takes long: look at the batch's keys, change its codec, seal it.

    Batches that get this node's time as they are written are sealed then: the time is bound by the seal (INV-SLB1).
    """
    header = too_large(data, config.message_bytes_max) or check_client_batch(data)
    if isinstance(header, AppendOutcome):
        return Prepared(config, header)
    made = _made(data, header, config)
    if not config.encryption or config.records.log_append_time or isinstance(made, AppendOutcome):
        return Prepared(config, made)
    keys = seal.sealing.keys.named
    return Prepared(config, seal.put(made, read_header(made), config), keys)


def fitted(
    data: Buffer,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    seal: Seal,
    ahead: Prepared | None = None,
) -> tuple[Buffer, BatchHeader] | AppendOutcome:
    """Return a fresh batch as it is to be written, with its header, or why it is refused.

    `ahead` is what `prepared` made of the same bytes.
    """
    refused = too_large(data, config.message_bytes_max)
    if refused is not None:
        return refused
    rules = config.records
    wrong_time = _time_problem(header, rules, now_ms)
    if wrong_time:
        return AppendOutcome(AppendVerdict.INVALID_TIMESTAMP, detail=wrong_time)
    made = made_ahead(ahead, config, seal)
    if made is None:
        made = _made(data, header, config)
    if isinstance(made, AppendOutcome):
        return made
    if made is not data:
        data, header = made, read_header(made)
    if rules.log_append_time:
        data = with_append_time(data, header, now_ms)
        header = read_header(data)
    if config.encryption and not header.is_sealed:
        made = seal.put(data, header, config)
        if isinstance(made, AppendOutcome):
            return made
        data, header = made, read_header(made)
    if header.size_bytes > config.segment_bytes:
        return AppendOutcome(
            AppendVerdict.LARGER_THAN_SEGMENT,
            detail=f"the batch has {header.size_bytes} bytes, segment.bytes is {config.segment_bytes}",
        )
    return data, header


def made_ahead(
    ahead: Prepared | None, config: LogConfig, seal: Seal
) -> Buffer | AppendOutcome | None:
    """Return what was made of a batch ahead, None where rules or keys are others by now (INV-FIT2, INV-FIT4)."""
    if ahead is None or ahead.config != config:
        return None
    is_old = ahead.keys is not None and ahead.keys is not seal.sealing.keys.named
    return None if is_old else ahead.made


def _made(data: Buffer, header: BatchHeader, config: LogConfig) -> Buffer | AppendOutcome:
    problem = _key_problem(data, header) if config.compacts else None
    if problem is not None:
        return problem
    rules = config.records
    if rules.codec is None or rules.codec == header.codec:
        return data
    try:
        changed = recompressed(data, header, rules.codec, level=rules.level)
    except RecordsError as error:
        return AppendOutcome(
            AppendVerdict.INVALID_RECORD,
            detail=f"compression.type={rules.codec.name.lower()} of the topic: {error}",
        )
    if len(changed) > config.message_bytes_max:
        return AppendOutcome(
            AppendVerdict.TOO_LARGE,
            detail=f"in the topic's codec the batch has {len(changed)} bytes, "
            f"max.message.bytes is {config.message_bytes_max}",
        )
    return changed


def _key_problem(data: Buffer, header: BatchHeader) -> AppendOutcome | None:
    """Return why a compacted topic does not take the batch: it would lose what has no key (Kafka validateKey)."""
    with memoryview(data) as view:
        batch = bytes(view[: header.size_bytes])
    keyless = 0
    bad: list[int] = []
    try:
        for index, record in enumerate(walk(open_body(batch, header), header)):
            if record.key is None:
                keyless += 1
                if len(bad) < RECORD_ERRORS_MAX:
                    bad.append(index)
    except RecordsError as error:
        return AppendOutcome(AppendVerdict.INVALID_RECORD, detail=str(error))
    if not bad:
        return None
    return AppendOutcome(
        AppendVerdict.INVALID_RECORD,
        detail=f"{keyless} of {header.record_count} records, the first of them record {bad[0]}, have no key:"
        " a compacted topic keeps records by key",
        bad_records=tuple(bad),
    )


def _time_problem(header: BatchHeader, rules: RecordRules, now_ms: int) -> str:
    if header.attributes & LOG_APPEND_TIME_BIT:
        return "a producer must not set the timestamp type LogAppendTime"
    if rules.log_append_time:
        return ""
    latest_ms, first_ms = header.max_timestamp_ms, header.base_timestamp_ms
    highest_ms = max(latest_ms, first_ms)
    if highest_ms != NO_TIMESTAMP_MS and highest_ms - now_ms > rules.after_max_ms:
        return (
            f"timestamp {highest_ms} is {highest_ms - now_ms} ms ahead of this node's clock, "
            f"message.timestamp.after.max.ms is {rules.after_max_ms}"
        )
    if first_ms != NO_TIMESTAMP_MS and now_ms - first_ms > rules.before_max_ms:
        return (
            f"timestamp {first_ms} is {now_ms - first_ms} ms old, "
            f"message.timestamp.before.max.ms is {rules.before_max_ms}"
        )
    return ""
