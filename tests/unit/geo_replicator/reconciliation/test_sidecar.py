"""Sidecars: what they vouch for, and every way in which they must not be believed."""

import errno
import hashlib
import random
from pathlib import Path

import pytest

from geo_replicator.reconciliation.segments.batch_table import range_digests
from geo_replicator.reconciliation.segments.scanner import scan_segment
from geo_replicator.reconciliation.segments.sidecar import (
    SegmentDamaged,
    SidecarError,
    decode,
    read_sidecar,
    write_sidecar,
)
from geo_replicator.reconciliation.segments.sidecar_names import sidecar_path
from region_broker.ports.system.disk import RealDisk
from tests.reconciliation.two_regions import A0, flipped, sound_primary
from tests.simulation.disk import SimulatedDisk


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(sound_primary().logs[A0]))
    return path


def test_it_holds_the_table_the_digests_and_the_hash(segment: Path) -> None:
    written = write_sidecar(segment, RealDisk())
    assert written.name == f"{0:020d}.hdr"
    assert sorted(path.name for path in segment.parent.iterdir()) == [written.name, segment.name]
    sidecar = read_sidecar(segment, segment_bytes=segment.stat().st_size)
    table = scan_segment(segment).table
    assert (sidecar.table == table).all()
    assert (sidecar.ranges == range_digests(table)).all()
    assert sidecar.segment_sha256 == hashlib.sha256(segment.read_bytes()).digest()


def test_an_empty_segment_has_an_empty_sidecar(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"")
    write_sidecar(path, RealDisk())
    assert len(read_sidecar(path, segment_bytes=0).table) == 0


# Holds INV-RCSD2.
def test_a_stale_one_is_refused(segment: Path) -> None:
    write_sidecar(segment, RealDisk())
    with pytest.raises(SidecarError, match="stale"):
        read_sidecar(segment, segment_bytes=segment.stat().st_size + 1)


def test_every_flipped_byte_is_noticed(segment: Path) -> None:
    data = write_sidecar(segment, RealDisk()).read_bytes()
    for at in range(0, len(data), 41):
        with pytest.raises(SidecarError):
            decode(flipped(data, at=at))
    for size in (0, 5, len(data) - 1):
        with pytest.raises(SidecarError):
            decode(data[:size])


# Holds INV-RCSD3.
@pytest.mark.parametrize("spoil", [lambda data: flipped(data, at=90), lambda data: data[:-7]])
def test_a_damaged_segment_gets_none(segment: Path, spoil: object) -> None:
    segment.write_bytes(spoil(segment.read_bytes()))  # type: ignore[operator]
    with pytest.raises(SegmentDamaged, match="reconcile verify"):
        write_sidecar(segment, RealDisk())
    assert not sidecar_path(segment).exists()


def test_INV_RCSD1_it_is_whole_or_absent_on_a_disk_that_fails_or_loses_power() -> None:
    disk, folder = SimulatedDisk(), Path("/logs")
    segment, target = folder / f"{0:020d}.log", folder / f"{0:020d}.hdr"
    disk.make_dirs(folder)
    disk.write_file_atomic(segment, b"".join(sound_primary().logs[A0]))
    disk.fail_by_chance(random.Random(0), 1.0, (errno.ENOSPC,))
    with pytest.raises(OSError, match="Input/output error"):
        write_sidecar(segment, disk)
    disk.fault = None
    assert disk.list_dir(folder) == [segment.name]
    write_sidecar(segment, disk)
    disk.power_loss(random.Random(0))
    assert decode(disk.read_file(target)).segment_bytes == disk.file_size(segment)
