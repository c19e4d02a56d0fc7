"""Sealed batches in files, opened for the offline tools with the keys that an operator gives (`--keys`).

Without keys nothing fails that does not need records: who asks for them is told that they are sealed, and under which key.
Not here: printing (`log_dump`, `log_export`).
"""

import json
import re
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click

from idempotency.record_batch import BatchHeader
from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.partitions.topic_file import TOPIC_FILE_NAME
from region_broker.ports.system.disk import RealDisk
from region_broker.security.sealing.data_keys import KeyNotHere
from region_broker.security.sealing.key_ring import RingError
from region_broker.security.sealing.sealed_batch import LogPlace, SealBroken, key_ref
from region_broker.security.sealing.sealing import KeysFile, Sealing

QUARANTINED_TAILS: Final = "*.batches"
_QUARANTINED: Final = re.compile(r"(.+)-(\d+)")
"""A quarantined tail lies in `<topic id>-<partition>`."""

keys_option = click.option(
    "--keys", "keys_file", type=click.Path(path_type=Path),
    help="The file of named keys (encryption_keys_file): opens what is sealed.",
)  # fmt: skip


class NotOpened(Exception):
    """A sealed batch stays closed; the text says under which key it is, and why."""


def keys_of(file: Path | None) -> Sealing:
    """Return the keys of a file, none without one; ends the command where it cannot be read."""
    sealing = Sealing(None if file is None else KeysFile(RealDisk(), file), lambda: 0)
    try:
        sealing.read()
    except RingError as error:
        fail(str(error), EXIT_USAGE)
    return sealing


def facts_of(batch: bytes, header: BatchHeader) -> dict[str, Any]:
    """Return what can be said of a sealed batch without its key."""
    try:
        ref = key_ref(batch, 0, header)
    except SealBroken as error:
        return {"sealed": {"damage": str(error)}}
    return {"sealed": {"key": ref.name, "version": ref.version.hex()}}


def opened(batch: bytes, header: BatchHeader, file: Path, sealing: Sealing) -> bytes:
    """Return a batch of a file in a log's folder as it was sealed; raises `NotOpened`."""
    if not header.is_sealed:
        return batch
    place = _place_of(file)
    if place is None:
        raise NotOpened(
            "it is sealed for one log, and the folder does not say which: keep TOPIC/PARTITION"
        )
    try:
        return bytes(sealing.opened(batch, place))
    except KeyNotHere:
        name = key_ref(batch, 0, header).name
        raise NotOpened(
            f"it is sealed under the key {name!r}, version {key_ref(batch, 0, header).version.hex()}: give a file"
            " that has it by --keys"
        ) from None
    except SealBroken as error:
        raise NotOpened(str(error)) from error


def _place_of(file: Path) -> LogPlace | None:
    """Return which log a file belongs to, as its folders are called."""
    folder = file.parent
    quarantined = _QUARANTINED.fullmatch(folder.name)
    if quarantined:
        topic_id = _uuid(quarantined[1])
        return None if topic_id is None else LogPlace.of(topic_id, int(quarantined[2]))
    number = folder.name.partition(".")[0]
    topic_id = _uuid(folder.parent.name.partition(".")[0]) or _told_beside(folder.parent)
    return LogPlace.of(topic_id, int(number)) if topic_id and number.isdecimal() else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _told_beside(folder: Path) -> UUID | None:
    try:
        return _uuid(str(json.loads((folder / TOPIC_FILE_NAME).read_bytes())["topic_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
