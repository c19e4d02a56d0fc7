"""`tidemark log dump`: what is in a segment file, batch by batch, from the bytes alone.

The file is only read, piece by piece; a node may be writing to it. Damage is named with its position; what lies before
it is printed, and the exit code is 1, also where a batch is whole but for its checksum, and what follows is printed, too.
Not here: recovery (`region_broker.log.recovery`), comparing regions (`tidemark reconcile`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from idempotency.ledger_records import TransactionKey, decode_key, decode_transaction_value
from idempotency.record_batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchError,
    BatchFault,
    BatchHeader,
    crc_ok,
    read_header,
    read_marker,
)
from region_broker.cli.inspect.sealed_logs import (
    NotOpened,
    facts_of,
    keys_of,
    keys_option,
    opened,
)
from region_broker.cli.output import EXIT_FAILED, EXIT_NOT_FOUND, fail, output_option, printable
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.log.file_names import LOG_SUFFIX, file_name
from region_broker.partitions.topic_file import TOPIC_FILE_NAME
from region_broker.records.batches import Record, RecordsError, iter_records
from region_broker.records.compression import Codec
from region_broker.security.sealing.sealing import Sealing

_FIRST_SEGMENT: Final = file_name(0, LOG_SUFFIX)
_SEGMENT: Final = re.compile(r"\d{20}\.log")
_SOUND: Final = "ok"
_NAMED_MAX: Final = 5


@click.group(epilog="Example: tidemark log dump ./cluster/eu/logs/8f0c.../0")
def log() -> None:
    """Look into log files, without a node."""


@log.command(
    "dump",
    epilog="""\b
Examples:
  tidemark log dump ./cluster/eu/logs/8f0c.../0/00000000000000000000.log
  tidemark log dump ./cluster/eu/logs/8f0c.../0 --records --from 1200 --limit 10
  tidemark log dump ./cluster/eu/logs/8f0c.../0 -o json | jq '.[] | select(.kind == "abort")'
""",
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="The records of each batch, too.")
@click.option("--from", "start", default=0, type=click.IntRange(0), help="First offset to print.")
@click.option("--limit", type=click.IntRange(1), help="Batches to print at most.")
@keys_option
@output_option
def dump(
    *, path: Path, records: bool, start: int, limit: int | None, keys_file: Path | None, output: str
) -> None:
    """Print the batches of a segment file, or of all segments in a partition's folder PATH."""
    sealing = keys_of(keys_file)
    segments = segments_of(path)
    printed = 0
    wrong = []
    document = _Document(output)
    for segment in segments:
        topic = _topic_of(segment)
        try:
            for position, header, batch in batches_of(segment):
                if header.last_offset < start:
                    continue
                row = described(segment, position, header, batch)
                if records and not header.is_control:
                    row["content"] = list(_contents(batch, header, segment, topic, sealing))
                document.add(row)
                if row["crc"] != _SOUND:
                    wrong.append(f"{segment} at byte {position}")
                printed += 1
                if limit is not None and printed >= limit:
                    _end(document, wrong)
                    return
        except (BatchError, OSError) as error:
            document.end()
            fail(f"{segment}: {error}{_if_no_segment(segment)}", EXIT_FAILED)
    _end(document, wrong)


def _end(document: "_Document", wrong: Sequence[str]) -> None:
    """End the output, and the command where checksums were `wrong`."""
    document.end()
    if wrong:
        fail(f"the checksum of {len(wrong)} batches is wrong: {'; '.join(wrong[:_NAMED_MAX])}")


def _if_no_segment(path: Path) -> str:
    """Return a doubt for a file that is not called like a segment: what is wrong may be the choice."""
    if _SEGMENT.fullmatch(path.name):
        return ""
    return f". Is it a segment? Those are called as {_FIRST_SEGMENT}"


def segments_of(path: Path) -> list[Path]:
    """Return the segments of a partition's folder in order, or the one file; ends the command where there is none."""
    if path.is_dir():
        found = sorted(each for each in path.glob("*.log") if _SEGMENT.fullmatch(each.name))
        if not found:
            fail(f"{path} holds no segment (such as {_FIRST_SEGMENT}): name a partition's folder, logs/TOPIC/PARTITION"
                 " in a node's data folder", EXIT_NOT_FOUND)  # fmt: skip
        return found
    if not path.is_file():
        fail(f"there is no {path}", EXIT_NOT_FOUND)
    return [path]


def batches_of(segment: Path) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield (position, header, bytes) of each batch; raises BatchError where the file is no batch any more."""
    with segment.open("rb") as file:
        position = 0
        while front := file.read(HEADER_BYTES):
            if not any(front):
                return  # preallocated and not written yet
            try:
                header = read_header(front)
            except BatchError as error:
                raise BatchError(error.reason, f"at byte {position}: {error}") from error
            rest = file.read(max(header.size_bytes, LENGTH_PREFIX_BYTES) - len(front))
            if len(front) + len(rest) < header.size_bytes:
                raise BatchError(
                    BatchFault.SHORT,
                    f"at byte {position}: the last batch has {len(front) + len(rest)} of its "
                    f"{header.size_bytes} bytes: it was not written to the end",
                )
            yield position, header, front + rest
            position += header.size_bytes


def described(segment: Path, position: int, header: BatchHeader, batch: bytes) -> dict[str, Any]:
    """Return a batch as plain values, without its records."""
    row: dict[str, Any] = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "kind": "data",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "codec": _codec(header.attributes & CODEC_MASK),
        "leader_epoch": header.leader_epoch,
        "max_timestamp": _time(header.max_timestamp_ms),
        "crc": _SOUND if crc_ok(batch, 0, header) else "WRONG",
        "file": segment.name,
        "position": position,
        "size_bytes": header.size_bytes,
    }
    if header.is_control:
        row.update(_marker(batch))
    if header.is_sealed:
        row.update(facts_of(batch, header))
    return row


def _codec(number: int) -> str:
    """Return a codec's name, its number where no codec has it: a bit may have flipped."""
    return Codec(number).name.lower() if number in set(Codec) else f"codec {number}"


def _marker(batch: bytes) -> dict[str, Any]:
    try:
        marker = read_marker(batch)
    except BatchError as error:
        return {"kind": "control", "damage": str(error)}
    facts: dict[str, Any] = {
        "kind": marker.control_type.name.lower(),
        "coordinator_epoch": marker.coordinator_epoch,
    }
    decision = marker.decision
    if decision is not None:
        facts["decision"] = {
            "shard": decision.shard,
            "leader_epoch": decision.leader_epoch,
            "offset": decision.offset,
            "round": decision.stamp,
        }
    return facts


def _contents(
    batch: bytes, header: BatchHeader, segment: Path, topic: str, sealing: Sealing
) -> Iterator[dict[str, Any]]:
    try:
        for record in iter_records(opened(batch, header, segment, sealing)):
            yield {
                "offset": record.offset,
                "timestamp": _time(record.timestamp_ms),
                **_key_and_value(record, topic),
                "headers": {name: _text(value) for name, value in record.headers},
            }
    except NotOpened as error:
        yield {"sealed": str(error)}
    except RecordsError as error:
        yield {"damage": str(error)}


def _key_and_value(record: Record, topic: str) -> dict[str, Any]:
    if topic == TRANSACTION_LEDGER and record.key is not None and record.value is not None:
        named = decode_key(record.key)
        if isinstance(named, TransactionKey):
            value = decode_transaction_value(named.transactional_id, record.value)
            return {
                "key": named.transactional_id,
                "value": f"{value.status.name} producer {value.producer_id} epoch {value.producer_epoch}"
                f" round {value.stamp} in {', '.join(map(str, value.partitions)) or 'no partition'}",
            }
        return {"key": str(named), "value": _text(record.value)}
    return {"key": _text(record.key), "value": _text(record.value)}


def _text(value: bytes | None) -> str | None:
    """Return text as it is, anything else in hexadecimal."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def _topic_of(segment: Path) -> str:
    """Return the topic's name, as the file beside the partitions says; empty for a lone file."""
    beside = segment.parent.parent / TOPIC_FILE_NAME
    if not beside.is_file():
        return ""
    try:
        name = json.loads(beside.read_bytes())["name"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(name)


class _Document:
    """Prints batch after batch: a line each, or the elements of one JSON list."""

    def __init__(self, output: str) -> None:
        self._as_json = output == "json"
        self._count = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self._count += 1
        if self._as_json:
            click.echo(("[" if self._count == 1 else ",") + json.dumps(row))
            return
        click.echo(printable(_line(row)))
        for record in row.get("content", ()):
            click.echo(printable("    " + _record_line(record)))

    def end(self) -> None:
        if self._as_json:
            click.echo("[]" if not self._count else "]")


def _line(row: Mapping[str, Any]) -> str:
    parts = [f"{row['base_offset']}..{row['last_offset']}", f"{row['kind']:6}"]
    if row["kind"] == "data":
        parts.append(f"{row['records']} records")
    parts.append(f"{row['size_bytes']} bytes at {row['position']} of {row['file']}")
    if row["producer_id"] >= 0:
        parts.append(
            f"producer {row['producer_id']} epoch {row['producer_epoch']} sequence {row['base_sequence']}"
        )
    parts.append("transactional" if row["transactional"] else "plain")
    parts += [row["codec"], f"leader epoch {row['leader_epoch']}", row["max_timestamp"]]
    if "decision" in row:
        decision = row["decision"]
        parts.append(
            f"decision {decision['shard']}/{decision['leader_epoch']}/{decision['offset']}"
            f" round {decision['round']}"
        )
    parts.append(f"crc {row['crc']}")
    if "sealed" in row:
        parts.append(
            f"sealed {' '.join(f'{name} {value}' for name, value in row['sealed'].items())}"
        )
    return "  ".join(parts)


def _record_line(record: Mapping[str, Any]) -> str:
    if "damage" in record:
        return f"damaged: {record['damage']}"
    if "sealed" in record:
        return f"not shown: {record['sealed']}"
    line = f"{record['offset']}  {record['timestamp']}  {record['key']} = {record['value']}"
    return line + "".join(f"  {name}: {value}" for name, value in record["headers"].items())
