"""Certificates of a private CA, read and verified by OpenSSL's command line as the other implementation."""

import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from region_broker.security.certificates import (
    Authority,
    CertificateRefused,
    check_not_revoked,
    issue_client,
    issue_node,
    new_authority,
    new_key,
    pem_of,
    renewed,
    revocation_list,
)
from region_broker.security.node_names import NodeName
from tests.fixtures.certificates import (
    LONG_AGO,
    NOW,
    authority,
    leaf_key,
    node_certificate,
    user_certificate,
)


def openssl(*arguments: str, data: bytes = b"") -> str:
    """Return all that a command of OpenSSL says."""
    done = subprocess.run(
        ["openssl", *arguments], input=data, capture_output=True, check=False, timeout=20
    )
    return (done.stdout + done.stderr).decode()


def text_of(certificate: x509.Certificate) -> str:
    return openssl("x509", "-noout", "-text", data=pem_of(certificate))


def verified(
    folder: Path,
    certificate: x509.Certificate,
    *options: str,
    by: Authority | None = None,
    crl: x509.CertificateRevocationList | None = None,
) -> str:
    """Return what `openssl verify` says in its strict mode."""
    ca = folder / "ca.pem"
    ca.write_bytes(pem_of((by or authority()).certificate))
    if crl is not None:
        (folder / "crl.pem").write_bytes(pem_of(crl))
        options = (*options, "-crl_check", "-CRLfile", str(folder / "crl.pem"))
    return openssl("verify", "-x509_strict", "-CAfile", str(ca), *options, data=pem_of(certificate))


# --- what is in them -----------------------------------------------------------------------------


def test_a_ca_signs_and_does_nothing_else() -> None:
    text = text_of(authority().certificate)
    assert "CA:TRUE, pathlen:0" in text
    assert re.search(r"Key Usage: critical\s+Certificate Sign, CRL Sign\s", text)
    assert "ASN1 OID: prime256v1" in text
    assert "ecdsa-with-SHA256" in text


def test_a_node_serves_and_connects_and_names_itself() -> None:
    """INV-CRT1"""
    made = issue_node(
        authority(), NodeName("eu", 3, "c1"), ["eu3.example.org.", "10.0.0.3", "2001:db8::3", "10.0.0.3"],
        leaf_key().public_key(), now=NOW,
    )  # fmt: skip
    text = text_of(made)
    assert re.search(r"Subject: O ?= ?c1, OU ?= ?eu, OU ?= ?node 3\n", text)
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in text
    assert (
        "DNS:eu3.example.org, IP Address:10.0.0.3, IP Address:2001:DB8:0:0:0:0:0:3, URI:tidemark:node/c1/eu/3\n"
        in text
    )
    assert "CA:FALSE" in text
    assert re.search(r"Key Usage: critical\s+Digital Signature\s", text)


def test_a_user_only_connects_and_names_no_node() -> None:
    """INV-CRT1"""
    text = text_of(user_certificate("alice"))
    assert re.search(r"Subject: CN ?= ?alice\n", text)
    assert re.search(r"Extended Key Usage: \s+TLS Web Client Authentication\s", text)
    assert "Alternative Name" not in text


def test_openssl_takes_them_for_what_they_are_for_and_for_nothing_else(tmp_path: Path) -> None:
    """INV-CRT1"""
    node, client = node_certificate(), user_certificate()
    assert verified(tmp_path, node, "-purpose", "sslserver").endswith("OK\n")
    assert verified(tmp_path, node, "-purpose", "sslclient").endswith("OK\n")
    assert verified(tmp_path, client, "-purpose", "sslclient").endswith("OK\n")
    assert "unsuitable certificate purpose" in verified(tmp_path, client, "-purpose", "sslserver")
    assert verified(tmp_path, node, "-verify_ip", "127.0.0.1").endswith("OK\n")
    assert "hostname mismatch" in verified(tmp_path, node, "-verify_hostname", "example.org")
    assert "unable to get local issuer" in verified(tmp_path, node, by=authority("another CA"))


def test_a_clock_that_is_an_hour_behind_takes_a_new_one(tmp_path: Path) -> None:
    behind = int((NOW - timedelta(minutes=59)).timestamp())
    assert verified(tmp_path, node_certificate(), "-attime", str(behind)).endswith("OK\n")
    long_behind = int((NOW - timedelta(hours=2)).timestamp())
    assert "not yet valid" in verified(tmp_path, node_certificate(), "-attime", str(long_behind))


def test_nothing_lasts_longer_than_its_ca() -> None:
    """INV-CRT3"""
    short = new_authority("short", NOW, days=10)
    made = issue_client(short, "alice", leaf_key().public_key(), now=NOW, days=365)
    assert made.not_valid_after_utc == short.ends
    with pytest.raises(CertificateRefused, match="the CA ended on"):
        issue_client(short, "alice", leaf_key().public_key(), now=NOW + timedelta(days=10))


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb"])
def test_names_that_no_subject_may_have(name: str) -> None:
    with pytest.raises(CertificateRefused, match="1 to 64"):
        issue_client(authority(), name, leaf_key().public_key(), now=NOW)


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_lifetimes_that_make_no_sense(days: int) -> None:
    with pytest.raises(CertificateRefused, match="1 to 36500"):
        issue_client(authority(), "alice", leaf_key().public_key(), now=NOW, days=days)


def test_hosts_are_written_as_dns_has_them() -> None:
    with pytest.raises(CertificateRefused, match="no name of a host"):
        issue_node(
            authority(), NodeName("eu", 1, "c1"), ["köln.example.org"], leaf_key().public_key(), now=NOW
        )  # fmt: skip


# --- renewal -------------------------------------------------------------------------------------


def lasting(text: str) -> str:
    """Return what must stay of what OpenSSL prints: all but time, number and signature."""
    return re.sub(
        r"Serial Number:\s+[0-9a-f:]+|Not (Before|After ?) ?:[^\n]*|Signature Value:.*", "", text, flags=re.DOTALL
    )  # fmt: skip


@pytest.mark.parametrize("old", [node_certificate(now=LONG_AGO), user_certificate(now=LONG_AGO)])
def test_a_renewed_certificate_says_the_same_for_as_long_again(
    old: x509.Certificate, tmp_path: Path
) -> None:
    """INV-CRT2"""
    new = renewed(authority(), old, now=NOW)
    assert lasting(text_of(new)) == lasting(text_of(old))
    assert "TLS Web Client Authentication" in lasting(text_of(new))
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc == NOW + timedelta(days=365)
    assert "certificate has expired" in verified(tmp_path, old)
    assert verified(tmp_path, new).endswith("OK\n")


def test_a_new_key_is_taken_where_one_is_given() -> None:
    """INV-CRT2"""
    key = new_key()
    new = renewed(authority(), user_certificate(), now=NOW, days=30, public_key=key.public_key())
    assert new.public_key() == key.public_key()
    assert new.not_valid_after_utc == NOW + timedelta(days=30)


def test_a_foreign_certificate_is_renewed_only_by_the_ca_that_takes_its_cas_place(
    tmp_path: Path,
) -> None:
    """INV-CRT3"""
    other = authority("another CA")
    foreign = user_certificate(by=other)
    with pytest.raises(CertificateRefused, match="not by this CA"):
        renewed(authority(), foreign, now=NOW)
    new = renewed(authority(), foreign, now=NOW, former_authority=other.certificate)
    assert verified(tmp_path, new).endswith("OK\n")
    with pytest.raises(CertificateRefused, match="it is a CA"):
        renewed(authority(), authority().certificate, now=NOW)


# --- revocation ----------------------------------------------------------------------------------


def test_what_is_revoked_stays_so_and_the_number_grows(tmp_path: Path) -> None:
    """INV-CRT4"""
    mallory, alice = user_certificate("mallory"), user_certificate("alice")
    first = revocation_list(authority(), None, [], NOW)
    second = revocation_list(authority(), first, [mallory.serial_number], NOW, "keyCompromise")
    third = revocation_list(authority(), second, [alice.serial_number, mallory.serial_number], NOW)
    text = openssl("crl", "-noout", "-text", data=pem_of(third))
    assert re.search(r"CRL Number: \s+3\s", text)
    assert text.count("Serial Number:") == 2
    assert text.count("Key Compromise") == 1
    assert verified(tmp_path, alice, crl=second).endswith("OK\n")
    for revoked, crl in ((mallory, second), (mallory, third), (alice, third)):
        assert "certificate revoked" in verified(tmp_path, revoked, crl=crl)


def test_a_crl_lasts_as_long_as_its_ca(tmp_path: Path) -> None:
    crl = revocation_list(authority(), None, [], NOW)
    late = int((NOW + timedelta(days=360)).timestamp())
    assert verified(tmp_path, node_certificate(), "-attime", str(late), crl=crl).endswith("OK\n")


def test_a_crl_of_another_ca_is_not_gone_on_with() -> None:
    """INV-CRT4"""
    foreign = revocation_list(authority("another CA"), None, [], NOW)
    with pytest.raises(CertificateRefused, match="not of this CA"):
        revocation_list(authority(), foreign, [1], NOW)


def test_what_is_revoked_is_not_renewed() -> None:
    """INV-CRT3"""
    mallory = user_certificate("mallory")
    crl = revocation_list(authority(), None, [mallory.serial_number], NOW)
    check_not_revoked(user_certificate("alice"), crl)
    with pytest.raises(CertificateRefused, match="it is revoked"):
        check_not_revoked(mallory, crl)


def test_no_key_is_in_the_repr_of_a_ca() -> None:
    assert "key" not in repr(authority())


def test_nothing_begins_before_its_ca() -> None:
    """INV-CRT3: OpenSSL refuses a chain whose CA does not count yet, so a clock that went back makes none."""
    made = new_authority("young", NOW)
    issued = issue_client(made, "alice", new_key().public_key(), now=NOW - timedelta(minutes=30))
    assert issued.not_valid_before_utc == made.certificate.not_valid_before_utc
