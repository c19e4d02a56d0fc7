"""The folder of a CA: modes, what is never replaced, and two commands at once."""

import os
import stat
import threading
from pathlib import Path

import pytest

from region_broker.security.authority_folder import AuthorityFolder, check_no_authority, write
from region_broker.security.certificates import (
    CertificateRefused,
    key_pem,
    new_key,
    revocation_list,
)
from tests.fixtures.certificates import NOW, user_certificate


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def made(folder: Path) -> AuthorityFolder:
    return AuthorityFolder.create(folder / "ca", "CA of tests", NOW, 100)


def test_keys_are_their_owners_only_from_the_first_byte_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-AUF1"""
    modes: list[int] = []
    opened = os.open

    def watched(path: Path, flags: int, permissions: int = 0o777) -> int:
        descriptor = opened(path, flags, permissions)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077)
        return descriptor

    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", watched)
        folder = made(tmp_path)
    finally:
        os.umask(before)
    assert mode(folder.key_path) == 0o600
    assert mode(folder.path) == 0o700
    assert mode(folder.certificate_path) == 0o644
    assert modes[0] == 0, "the key is written first"


def test_what_every_node_reads_can_be_read_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = made(tmp_path)
    finally:
        os.umask(before)
    assert [mode(path) for path in (folder.certificate_path, folder.crl_path, folder.key_path)] == [
        0o644, 0o644, 0o600,
    ]  # fmt: skip


def test_INV_AUF1_a_file_is_there_for_good_once_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revocation that was told and is gone after a loss of power lets somebody in."""
    synced: list[Path] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(tmp_path / "crl.pem", b"x")
    file, folder = synced
    assert (file.parent, folder) == (tmp_path, tmp_path)


def test_a_ca_is_read_as_it_was_made(tmp_path: Path) -> None:
    folder = made(tmp_path)
    again = AuthorityFolder.load(folder.path)
    assert again.authority.certificate == folder.authority.certificate
    assert key_pem(again.authority.key) == key_pem(folder.authority.key)
    assert len(again.crl()) == 0
    assert again.issued() == {}


def test_a_ca_is_never_replaced(tmp_path: Path) -> None:
    """INV-AUF2"""
    folder = made(tmp_path)
    before = folder.key_path.read_bytes()
    with pytest.raises(CertificateRefused, match="choose another folder"):
        made(tmp_path)
    folder.certificate_path.unlink()
    with pytest.raises(CertificateRefused, match="choose another folder"):
        made(tmp_path)
    assert folder.key_path.read_bytes() == before


def test_nothing_is_replaced_unasked_and_nothing_is_left_beside(tmp_path: Path) -> None:
    """INV-AUF2"""
    path = tmp_path / "key.pem"
    write(path, b"first", 0o600)
    with pytest.raises(FileExistsError):
        write(path, b"second")
    assert path.read_bytes() == b"first"
    write(path, b"third", 0o600, replace=True)
    assert path.read_bytes() == b"third"
    assert mode(path) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["key.pem"]


def test_a_disk_that_fails_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-AUF1"""
    path = tmp_path / "crl.pem"
    write(path, b"former")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(path, b"next", replace=True)
    assert path.read_bytes() == b"former"
    assert [each.name for each in tmp_path.iterdir()] == ["crl.pem"]


def test_what_is_lost_or_mixed_up_is_told(tmp_path: Path) -> None:
    with pytest.raises(CertificateRefused, match="holds no CA"):
        AuthorityFolder.load(tmp_path)
    folder = made(tmp_path)
    folder.crl_path.unlink()
    with pytest.raises(CertificateRefused, match="holds what is revoked"):
        folder.crl()
    folder.key_path.write_bytes(key_pem(new_key()))
    with pytest.raises(CertificateRefused, match="not a pair"):
        AuthorityFolder.load(folder.path)
    body = "A" * 60
    folder.key_path.write_text(f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")
    with pytest.raises(CertificateRefused) as refused:
        AuthorityFolder.load(folder.path)
    assert body[:12] not in str(refused.value)


def test_two_commands_at_once_lose_no_revocation(tmp_path: Path) -> None:
    """INV-AUF4"""
    path = made(tmp_path).path
    serials = [user_certificate(f"user{number}").serial_number for number in range(8)]

    def revoke(serial: int) -> None:
        folder = AuthorityFolder.load(path)
        with folder.locked():
            folder.replace_crl(revocation_list(folder.authority, folder.crl(), [serial], NOW))

    threads = [threading.Thread(target=revoke, args=(serial,)) for serial in serials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    found = {entry.serial_number for entry in AuthorityFolder.load(path).crl()}
    assert found == set(serials)


@pytest.mark.parametrize("part", ["ca.pem", "ca-key.pem", "crl.pem"])
def test_a_part_of_a_ca_is_not_written_over(tmp_path: Path, part: str) -> None:
    """INV-AUF2"""
    (tmp_path / part).write_bytes(b"kept")
    with pytest.raises(CertificateRefused, match=f"{part} is there"):
        check_no_authority(tmp_path)
