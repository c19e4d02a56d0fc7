"""A set of files is used only if it is whole and fits together; texts tell nothing of keys."""

import base64
import codecs
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from region_broker.security.certificates import key_pem, new_key, pem_of
from region_broker.security.tls_contents import TlsFiles, TlsRefused, read_contents
from region_broker.security.tls_files import has_list, judged
from tests.fixtures.certificates import (
    LONG_AGO,
    authority,
    crl_of,
    leaf_key,
    node_certificate,
    put,
    user_certificate,
)


def refusal(files: TlsFiles) -> str:
    with pytest.raises(TlsRefused) as refused:
        judged(files, read_contents(files))
    return str(refused.value)


def test_ends_of_all_that_is_in_the_files(tmp_path: Path) -> None:
    node = node_certificate()
    files = put(tmp_path / "s", node, trusted=[authority(), authority("another CA")], crl=crl_of())
    ends = judged(files, read_contents(files))
    assert [(end.kind, end.path) for end in ends] == [
        ("certificate", files.certificate), ("ca", files.ca), ("ca", files.ca), ("crl", files.crl),
    ]  # fmt: skip
    assert ends[0].ends_wall_ms == node.not_valid_after_utc.timestamp() * 1000
    assert ends[3].ends_wall_ms == authority().ends.timestamp() * 1000
    assert ends[0].begins_wall_ms == node.not_valid_before_utc.timestamp() * 1000
    crl = x509.load_pem_x509_crl(Path(files.crl).read_bytes())
    assert ends[3].begins_wall_ms == crl.last_update_utc.timestamp() * 1000


def test_INV_TLF1_half_of_a_pair_is_no_set(tmp_path: Path) -> None:
    files = put(tmp_path / "s", node_certificate())
    for half in (TlsFiles(certificate=files.certificate), TlsFiles(key=files.key)):
        assert "only one of certificate and key is given" in refusal(half)


def test_what_openssl_and_others_write_is_read(tmp_path: Path) -> None:
    """Keys in the forms of `openssl ecparam`, `genrsa` and PKCS#8, with text around; certificate and key in one file."""
    files = put(tmp_path / "s", node_certificate())
    assert (
        subprocess.run(
            ["openssl", "ec", "-in", files.key, "-out", files.key], check=False, capture_output=True
        ).returncode
        == 0
    )
    assert "BEGIN EC PRIVATE KEY" in Path(files.key).read_text()
    assert judged(files, read_contents(files))
    parameters = subprocess.run(
        ["openssl", "ecparam", "-name", "prime256v1"], check=True, capture_output=True, text=True
    ).stdout
    Path(files.key).write_text(parameters + Path(files.key).read_text())
    assert "BEGIN EC PARAMETERS" in Path(files.key).read_text()
    assert judged(files, read_contents(files))
    shown = subprocess.run(
        ["openssl", "x509", "-in", files.certificate, "-text"], check=True, capture_output=True
    )
    Path(files.certificate).write_bytes(shown.stdout)
    assert judged(files, read_contents(files))
    both = tmp_path / "both.pem"
    both.write_bytes(pem_of(node_certificate()) + key_pem(leaf_key()))
    in_one = TlsFiles(str(both), str(both), files.ca)
    assert judged(in_one, read_contents(in_one))


def test_an_encrypted_key_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    files = put(tmp_path / "s", node_certificate())
    pem = leaf_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    Path(files.key).write_bytes(pem)
    assert "is encrypted" in refusal(files)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    """INV-TLF1"""
    files = put(tmp_path / "s", node_certificate())
    Path(files.key).write_bytes(key_pem(new_key()))
    assert "is not that of the first certificate" in refusal(files)


def test_a_chain_with_the_own_certificate_behind_is_refused(tmp_path: Path) -> None:
    """INV-TLF1"""
    files = put(tmp_path / "s", node_certificate())
    Path(files.certificate).write_bytes(
        pem_of(authority().certificate) + pem_of(node_certificate())
    )
    assert "certificate first in its file" in refusal(files)


@pytest.mark.parametrize("part", ["certificate", "key", "ca", "crl"])
def test_every_way_to_cut_a_file_off_is_found(tmp_path: Path, part: str) -> None:
    """INV-TLF1: at any byte, but for the line break at its end."""
    files = put(tmp_path / "s", node_certificate(), crl=crl_of(user_certificate()))
    path = Path(getattr(files, part))
    whole = path.read_bytes()
    for length in {*range(0, len(whole) - 2, 37), len(whole) - 2}:
        path.write_bytes(whole[:length])
        assert part in {"certificate", "key", "ca", "crl"}
        assert path.name in refusal(files)


def test_a_damaged_block_is_refused(tmp_path: Path) -> None:
    """INV-TLF1"""
    files = put(tmp_path / "s", node_certificate())
    pem = Path(files.ca).read_text().splitlines()
    pem[3] = "!" + pem[3][1:]
    Path(files.ca).write_text("\n".join(pem))
    assert "ca.pem" in refusal(files)


def test_a_crl_that_its_ca_has_not_signed_is_refused(tmp_path: Path) -> None:
    """INV-TLF1"""
    files = put(tmp_path / "s", node_certificate(), crl=crl_of())
    lines = Path(files.crl).read_text().splitlines()
    assert len(lines) > 4
    signature = lines[-2]
    lines[-2] = signature[:4] + ("A" if signature[4] != "A" else "B") + signature[5:]
    Path(files.crl).write_text("\n".join(lines) + "\n")
    text = refusal(files)
    assert "has not signed it" in text or "cannot be read" in text


def test_a_crl_of_a_ca_that_is_not_in_the_set_is_left_to_who_sees_the_chain(tmp_path: Path) -> None:
    """A chain may show an intermediate CA that `tls_ca` does not hold."""
    both = crl_of() + crl_of(by=authority("an intermediate CA"))
    files = put(tmp_path / "s", node_certificate(), crl=both)
    assert [end.kind for end in judged(files, read_contents(files))].count("crl") == 2


def test_a_crl_of_several_cas_and_none_without_a_ca(tmp_path: Path) -> None:
    both = crl_of() + crl_of(by=authority("another CA"))
    files = put(
        tmp_path / "s", node_certificate(), trusted=[authority(), authority("another CA")], crl=both
    )
    assert [end.kind for end in judged(files, read_contents(files))].count("crl") == 2
    assert "a CRL without CA" in refusal(TlsFiles(crl=files.crl))


def test_lines_may_end_as_other_systems_end_them(tmp_path: Path) -> None:
    """OpenSSL takes CRLF in each of the files, so we do."""
    files = put(tmp_path / "s", node_certificate(), crl=crl_of())
    ends = judged(files, read_contents(files))
    for path in (files.certificate, files.key, files.ca, files.crl):
        Path(path).write_bytes(Path(path).read_bytes().replace(b"\n", b"\r\n"))
    assert judged(files, read_contents(files)) == ends
    assert has_list(Path(files.certificate).read_bytes(), Path(files.crl).read_bytes())


def test_a_byte_order_mark_before_a_block_is_named(tmp_path: Path) -> None:
    """OpenSSL sees no block whose line begins with something else, and no one may guess that from what it says."""
    for which in ("certificate", "key", "ca", "crl"):
        files = put(tmp_path / which, node_certificate(), crl=crl_of())
        path = Path(getattr(files, which))
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
        assert f"{path} begins with a byte order mark" in refusal(files)


def test_a_file_that_is_no_file_of_certificates(tmp_path: Path) -> None:
    files = put(tmp_path / "s", node_certificate())
    Path(files.ca).write_text("nothing of that kind")
    assert "holds no PEM block" in refusal(files)
    with Path(files.ca).open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert "over 16777216 bytes" in refusal(files)
    gone = TlsFiles(ca=str(tmp_path))
    assert "cannot be read (Is a directory)" in refusal(gone)


def test_nothing_of_a_key_is_in_any_text(tmp_path: Path) -> None:
    """INV-TLF2"""
    files = put(tmp_path / "s", node_certificate(now=LONG_AGO))
    body = "".join(Path(files.key).read_text().splitlines()[1:-1])
    Path(files.key).write_text(Path(files.key).read_text().replace(body[:8], "!!" + body[2:8]))
    text = refusal(files) + repr(read_contents(files))
    assert not any(body[at : at + 12] in text for at in range(len(body) - 12))


# --- certificates that make no sense -------------------------------------------------------------

LABELS = {
    "certificate": "CERTIFICATE",
    "ca": "CERTIFICATE",
    "crl": "X509 CRL",
    "key": "PRIVATE KEY",
}


def changed(pem: bytes, label: str, change: Callable[[bytearray], None]) -> bytes:
    """Return one PEM block with its bytes changed."""
    der = bytearray(base64.b64decode(b"".join(pem.splitlines()[1:-1])))
    change(der)
    body = base64.encodebytes(bytes(der)).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n".encode()


def test_a_key_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    """INV-TLF1: it is looked at only when somebody asks for it."""
    files = put(tmp_path / "s", node_certificate())

    def unknown_curve(der: bytearray) -> None:
        der[der.index(bytes.fromhex("06082a8648ce3d030107")) + 9] = 0x70

    path = Path(files.certificate)
    path.write_bytes(changed(path.read_bytes(), "CERTIFICATE", unknown_curve))
    assert "makes no sense" in refusal(files)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_bytes_changed_at_random_are_taken_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """INV-TLF1: another error would end the node that looks at its files; 8,000 of these found six kinds of them."""
    files = put(tmp_path / "s", node_certificate(), crl=crl_of(user_certificate()))
    whole, drawn, refused = read_contents(files), random.Random(7), 0
    for _ in range(1_000):
        part = drawn.choice(list(LABELS))

        def change(der: bytearray) -> None:
            for _ in range(drawn.choice([1, 1, 2, 5])):
                der[drawn.randrange(len(der))] = drawn.randrange(256)

        pem = changed(getattr(whole, part), LABELS[part], change)
        try:
            judged(files, msgspec.structs.replace(whole, **{part: pem}))
        except TlsRefused:
            refused += 1
    assert 200 < refused < 1_000


def test_a_crl_file_holds_lists_and_nothing_else(tmp_path: Path) -> None:
    """INV-TLF1"""
    mixed = crl_of() + pem_of(user_certificate())
    files = put(tmp_path / "own", node_certificate(), crl=mixed)
    with pytest.raises(TlsRefused, match="something else beside"):
        judged(files, read_contents(files))
