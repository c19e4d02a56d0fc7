"""Handshakes by the contexts of a node, in memory, and files that change under them."""

import asyncio
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from region_broker.security import tls
from region_broker.security.certificates import (
    Authority,
    issue_node,
    key_pem,
    new_authority,
    new_key,
    pem_of,
    revocation_list,
)
from region_broker.security.node_names import NodeName
from region_broker.security.tls import (
    ClientTls,
    ServerTls,
    TlsCollector,
    TlsFiles,
    TlsRefused,
    TlsState,
    watch,
)
from region_broker.security.tls_contents import Contents, read_contents
from region_broker.security.tls_identity import node_of
from tests.fixtures.certificates import (
    LONG_AGO,
    NOW,
    authority,
    crl_of,
    node_certificate,
    put,
    shake_hands,
    user_certificate,
)

DAY_MS = 24 * 3600 * 1000


def server_of(folder: Path, **more: bytes) -> ServerTls:
    """Return a node's server that demands certificates."""
    return ServerTls(put(folder / "server", node_certificate(), **more), "required")  # type: ignore[arg-type]


def reason(error: ssl.SSLError | None) -> str:
    assert error is not None
    return f"{error.reason} {error}"


def test_a_client_looks_at_names_of_hosts_and_trusts_what_is_in_the_ca_file_alone(
    tmp_path: Path,
) -> None:
    context = ClientTls(put(tmp_path / "client", None)).context()
    assert context.check_hostname
    assert not context.hostname_checks_common_name, "RFC 9525: only the alternative names count"
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN, "be it a root or not"
    assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}


# --- who gets in ---------------------------------------------------------------------------------


def test_both_sides_know_each_other_by_their_certificates(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    client = ClientTls(put(tmp_path / "client", node_certificate("us", 7)))
    shaken = shake_hands(server.context(), client.context())
    assert shaken.is_good
    assert shaken.server.version() == "TLSv1.3"
    shown = shaken.server.getpeercert(binary_form=True)
    assert shown is not None
    assert node_of(shown) == ("us", 7, "c1")


def test_who_shows_no_certificate_does_not_get_in_where_one_is_required(tmp_path: Path) -> None:
    client = ClientTls(put(tmp_path / "client", None))
    shaken = shake_hands(server_of(tmp_path).context(), client.context())
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason(shaken.server_error)


def test_a_certificate_that_has_ended_does_not_get_in(tmp_path: Path) -> None:
    client = ClientTls(put(tmp_path / "client", user_certificate(now=LONG_AGO)))
    shaken = shake_hands(server_of(tmp_path).context(), client.context())
    assert "certificate has expired" in reason(shaken.server_error)


def test_a_certificate_of_another_ca_does_not_get_in(tmp_path: Path) -> None:
    stranger = user_certificate(by=authority("another CA"))
    client = ClientTls(put(tmp_path / "client", stranger))
    shaken = shake_hands(server_of(tmp_path).context(), client.context())
    assert "CERTIFICATE_VERIFY_FAILED" in reason(shaken.server_error)


def test_a_ca_of_the_same_name_is_another_ca(tmp_path: Path) -> None:

    twin = new_authority("CA of tests", LONG_AGO)
    client = ClientTls(put(tmp_path / "client", user_certificate(by=twin)))
    shaken = shake_hands(server_of(tmp_path).context(), client.context())
    assert "CERTIFICATE_VERIFY_FAILED" in reason(shaken.server_error)


def test_a_revoked_certificate_does_not_get_in_and_another_one_does(tmp_path: Path) -> None:
    revoked, good = user_certificate("mallory"), user_certificate("alice")
    server = server_of(tmp_path, crl=crl_of(revoked))
    refused = ClientTls(put(tmp_path / "mallory", revoked))
    shaken = shake_hands(server.context(), refused.context())
    assert "certificate revoked" in reason(shaken.server_error)
    assert shake_hands(server.context(), ClientTls(put(tmp_path / "alice", good)).context()).is_good


def test_where_a_certificate_is_only_asked_for_none_is_fine_and_a_bad_one_is_not(
    tmp_path: Path,
) -> None:
    """INV-TLS5"""
    server = ServerTls(put(tmp_path / "server", node_certificate()), "requested")
    without = shake_hands(server.context(), ClientTls(put(tmp_path / "c0", None)).context())
    assert without.is_good
    assert without.server.getpeercert(binary_form=True) is None
    stranger = ClientTls(put(tmp_path / "c1", user_certificate(by=authority("another CA"))))
    assert not shake_hands(server.context(), stranger.context()).is_good


def test_a_certificate_that_is_not_asked_for_is_not_shown(tmp_path: Path) -> None:
    server = ServerTls(put(tmp_path / "server", node_certificate()), "none")
    client = ClientTls(put(tmp_path / "client", user_certificate()))
    shaken = shake_hands(server.context(), client.context())
    assert shaken.is_good
    assert shaken.server.getpeercert(binary_form=True) is None


def test_a_user_cannot_serve_with_a_certificate_of_a_user(tmp_path: Path) -> None:
    server = ServerTls(put(tmp_path / "server", user_certificate()), "none")
    client = ClientTls(put(tmp_path / "client", None), check_host=False)
    assert "unsuitable certificate purpose" in reason(
        shake_hands(server.context(), client.context()).client_error
    )


def test_a_client_asks_for_the_host_that_it_connects_to(tmp_path: Path) -> None:
    server = ServerTls(put(tmp_path / "server", node_certificate()), "none")
    files = put(tmp_path / "client", None)
    assert shake_hands(server.context(), ClientTls(files).context(), host="127.0.0.1").is_good
    elsewhere = shake_hands(server.context(), ClientTls(files).context(), host="eu.example.org")
    assert "Hostname mismatch" in reason(elsewhere.client_error)
    peer = ClientTls(files, check_host=False)
    assert shake_hands(server.context(), peer.context(), host="eu.example.org").is_good


# --- what is spoken ------------------------------------------------------------------------------


def plain_client(change: Callable[[ssl.SSLContext], None]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    change(context)
    return context


def only(version: ssl.TLSVersion, ciphers: str = "") -> Callable[[ssl.SSLContext], None]:
    def change(context: ssl.SSLContext) -> None:
        context.minimum_version = context.maximum_version = version
        if ciphers:
            context.set_ciphers(ciphers)

    return change


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # to ask for TLS 1.1 is the test
@pytest.mark.parametrize(
    ("version", "ciphers", "is_spoken"),
    [
        (ssl.TLSVersion.TLSv1_1, "DEFAULT@SECLEVEL=0", False),
        (ssl.TLSVersion.TLSv1_2, "", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA256", False),  # CBC
        (ssl.TLSVersion.TLSv1_3, "", True),
    ],
)
def test_only_tls_1_2_with_aead_and_newer_is_spoken(
    tmp_path: Path, version: ssl.TLSVersion, ciphers: str, is_spoken: bool
) -> None:
    """INV-TLS4"""
    server = ServerTls(put(tmp_path / "server", node_certificate()), "none")
    shaken = shake_hands(server.context(), plain_client(only(version, ciphers)))
    assert shaken.is_good == is_spoken
    if is_spoken:
        assert shaken.server.compression() is None


def test_nothing_is_compressed_and_nobody_renegotiates(tmp_path: Path) -> None:
    """INV-TLS4"""
    files = put(tmp_path / "server", node_certificate())
    for each in (ServerTls(files, "none"), ServerTls(files, "required"), ClientTls(files)):
        options = each.context().options
        assert ssl.OP_NO_COMPRESSION in options
        assert ssl.OP_NO_RENEGOTIATION in options
        assert {entry["aead"] for entry in each.context().get_ciphers()} == {True}


def test_a_client_with_a_certificate_is_checked_each_time(tmp_path: Path) -> None:
    """INV-TLS5: no ticket, so no session that outlives a revocation; without certificates sessions are resumed."""
    files = put(tmp_path / "server", node_certificate())
    client = ClientTls(put(tmp_path / "client", user_certificate())).context()
    for server, tickets in (
        (ServerTls(files, "none"), True),
        (ServerTls(files, "required"), False),
    ):
        session = shake_hands(server.context(), client).client.session
        assert session is not None
        assert session.has_ticket == tickets
        again = shake_hands(server.context(), client, session=session)
        assert again.is_good
        assert again.client.session_reused == tickets


def test_a_session_of_tls_1_2_does_not_outlive_a_revocation(tmp_path: Path) -> None:
    """INV-TLS5"""
    mallory = user_certificate("mallory")
    server = server_of(tmp_path, crl=crl_of())
    client = ClientTls(put(tmp_path / "mallory", mallory)).context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    session = shake_hands(server.context(), client).client.session
    again = shake_hands(server.context(), client, session=session)
    assert again.client.session_reused, "as TLS 1.2 does: else this test shows nothing"
    (tmp_path / "server" / "crl.pem").write_bytes(crl_of(mallory))
    assert [server.look(), server.look()] == [False, True]
    after = shake_hands(server.context(), client, session=session)
    assert "certificate revoked" in reason(after.server_error)


def test_no_session_of_a_former_context_is_resumed(tmp_path: Path) -> None:
    """INV-TLS3"""
    files = put(tmp_path / "server", node_certificate())
    server = ServerTls(files, "none")
    client = ClientTls(put(tmp_path / "client", None)).context()
    session = shake_hands(server.context(), client).client.session
    put(tmp_path / "server", node_certificate(node_id=2))
    assert [server.look(), server.look()] == [False, True]
    again = shake_hands(server.context(), client, session=session)
    assert again.is_good
    assert not again.client.session_reused


def met_by_openssl(
    server: ServerTls, client: TlsFiles, *options: str, typed: str = ""
) -> tuple[list[bytes | None], str]:
    """Let `openssl s_client` connect over the loopback; return which certificates the server saw, and all that the client says.

    The server says a word and closes; where something is typed, it reads until the other side has ended.
    """
    taken: list[bytes | None] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take_one() -> None:
            plain, _ = listener.accept()
            plain.settimeout(10)
            with server.context().wrap_socket(plain, server_side=True) as secure:
                taken.append(secure.getpeercert(binary_form=True))
                if not typed:
                    secure.sendall(b"hello\n")
                    return
                with suppress(OSError):
                    while secure.recv(100):
                        pass

        thread = threading.Thread(target=take_one, daemon=True)
        thread.start()
        done = subprocess.run(
            [
                "openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", "-CAfile", client.ca,
                "-cert", client.certificate, "-key", client.key, "-verify_return_error", "-verify_ip", "127.0.0.1",
                "-x509_strict", *options,
            ],
            input=typed, capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
        thread.join(timeout=20)
    return taken, done.stdout + done.stderr


def test_openssl_itself_agrees(tmp_path: Path) -> None:
    """The other implementation: `openssl s_client` against these very files."""
    client = put(tmp_path / "client", user_certificate())
    taken, said = met_by_openssl(server_of(tmp_path), client, "-quiet")
    assert "hello" in said
    assert len(taken) == 1
    assert taken[0] is not None


def test_a_client_that_renegotiates_is_refused(tmp_path: Path) -> None:
    """INV-TLS4: a line "R" has `s_client` ask for it."""
    client = put(tmp_path / "client", user_certificate())
    taken, said = met_by_openssl(server_of(tmp_path), client, "-tls1_2", typed="R\n")
    assert len(taken) == 1
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


# --- files that change ---------------------------------------------------------------------------


def served_by(server: ServerTls, folder: Path) -> tuple[str, int, str] | None:
    """Return which node a client meets now."""
    shaken = shake_hands(
        server.context(), ClientTls(put(folder / "asking", user_certificate())).context()
    )
    shown = shaken.client.getpeercert(binary_form=True)
    assert shaken.is_good
    assert shown is not None
    return node_of(shown)


def test_changed_files_count_for_new_handshakes_and_old_connections_go_on(tmp_path: Path) -> None:
    """INV-TLS3"""
    server = server_of(tmp_path)
    before = shake_hands(
        server.context(), ClientTls(put(tmp_path / "c", user_certificate())).context()
    )
    former = server.context()
    put(tmp_path / "server", node_certificate(node_id=2))
    assert not server.look()
    assert server.context() is former
    assert server.look()
    assert server.context() is not former
    assert served_by(server, tmp_path) == ("eu", 2, "c1")
    before.client.write(b"still there")
    assert before.server.read(100) == b"still there"
    assert not server.look()


def test_a_revocation_counts_without_a_restart(tmp_path: Path) -> None:
    mallory = user_certificate("mallory")
    server = server_of(tmp_path, crl=crl_of())
    client = ClientTls(put(tmp_path / "mallory", mallory)).context()
    assert shake_hands(server.context(), client).is_good
    (tmp_path / "server" / "crl.pem").write_bytes(crl_of(mallory))
    assert [server.look(), server.look()] == [False, True]
    assert not shake_hands(server.context(), client).is_good


def next_crl(crl: bytes, *revoked: x509.Certificate, by: Authority | None = None) -> bytes:
    """Return what the CA signs behind `crl`."""
    former = x509.load_pem_x509_crl(crl)
    serials = [certificate.serial_number for certificate in revoked]
    return pem_of(revocation_list(by or authority(), former, serials, NOW - timedelta(minutes=5)))


def test_INV_TLS6_an_older_copy_of_a_crl_lets_nobody_in_again(tmp_path: Path) -> None:
    """1. A certificate is revoked. 2. Somebody puts the list of before in place, by itself or beside another change."""
    mallory = user_certificate("mallory")
    first = crl_of()
    server = server_of(tmp_path, crl=first)
    client = ClientTls(put(tmp_path / "mallory", mallory)).context()
    crl = tmp_path / "server" / "crl.pem"
    second = next_crl(first, mallory)
    crl.write_bytes(second)
    assert [server.look(), server.look()] == [False, True]
    crl.write_bytes(first)
    assert [server.look(), server.look(), server.look()] == [False, False, False]
    assert not shake_hands(server.context(), client).is_good
    assert "holds CRL 1 of 'CN=" in server.refusal
    assert "CRL 2 has been in use" in server.refusal
    put(tmp_path / "server", node_certificate(node_id=2))
    assert [server.look(), server.look()] == [False, False]
    crl.write_bytes(next_crl(second))
    assert [server.look(), server.look()] == [False, True]
    assert not shake_hands(server.context(), client).is_good
    assert served_by(server, tmp_path) == ("eu", 2, "c1")
    crl.write_bytes(first)
    assert ServerTls(server.files, "required").refusal == "", (
        "whoever starts it anew says that it is right"
    )


def made_anew(former: Authority) -> Authority:
    """Return a CA that has the whole name of another one. Ours draw a part of theirs from their key; those of others do not."""
    key, name = new_key(), former.certificate.subject
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(NOW - timedelta(days=1))
    builder = builder.not_valid_after(NOW + timedelta(days=30))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def test_INV_TLS6_a_ca_that_was_made_anew_under_the_same_name_begins_anew(tmp_path: Path) -> None:
    first = crl_of()
    server = server_of(tmp_path, crl=next_crl(first))
    again = made_anew(authority())
    put(tmp_path / "server", node_certificate(by=again), trusted=[again], crl=crl_of(by=again))
    assert [server.look(), server.look()] == [False, True]


def numbered(number: int, *revoked: x509.Certificate, by: Authority | None = None) -> bytes:
    """Return a CRL as `openssl ca -gencrl` makes it by its configuration as it comes: numbered, and without a word of the key that signs it."""
    by = by or authority()
    builder = x509.CertificateRevocationListBuilder().issuer_name(by.certificate.subject)
    builder = builder.last_update(NOW - timedelta(hours=1)).next_update(NOW + timedelta(days=1))
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for each in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(NOW).build())
    return pem_of(builder.sign(by.key, hashes.SHA256()))


def test_INV_TLS6_an_older_copy_is_known_where_no_crl_says_which_key_has_signed_it(
    tmp_path: Path,
) -> None:
    mallory = user_certificate("mallory")
    server = server_of(tmp_path, crl=numbered(1))
    client = ClientTls(put(tmp_path / "mallory", mallory)).context()
    crl = tmp_path / "server" / "crl.pem"
    crl.write_bytes(numbered(2, mallory))
    assert [server.look(), server.look()] == [False, True]
    crl.write_bytes(numbered(1))
    assert [server.look(), server.look()] == [False, False]
    assert "CRL 2 has been in use" in server.refusal
    assert not shake_hands(server.context(), client).is_good
    again = made_anew(authority())
    put(tmp_path / "server", node_certificate(by=again), trusted=[again], crl=numbered(1, by=again))
    assert [server.look(), server.look()] == [False, True], "another key of that name begins anew"


@pytest.mark.parametrize("says_key", [True, False])
def test_INV_TLS6_so_it_is_where_its_ca_is_not_in_the_set(tmp_path: Path, says_key: bool) -> None:
    """An intermediate CA, which a client sends along: nobody here can tell whether it has signed the list."""
    other = authority("another CA")
    lists = (
        (crl_of(by=other), next_crl(crl_of(by=other), by=other)) if says_key else
        (numbered(1, by=other), numbered(2, by=other))
    )  # fmt: skip
    server = server_of(tmp_path, crl=crl_of() + lists[1])
    (tmp_path / "server" / "crl.pem").write_bytes(crl_of() + lists[0])
    assert [server.look(), server.look()] == [False, False]
    assert "holds CRL 1 of 'CN=another CA" in server.refusal


def test_INV_TLS6_nor_is_it_taken_once_the_list_was_gone_or_stood_beside_the_newer_one(
    tmp_path: Path,
) -> None:
    """1. The file holds the lists of two CAs, of the first one also an older copy. 2. It holds that of the other one. 3. The copy is back."""
    other, first = crl_of(by=authority("another CA")), crl_of()
    server = server_of(tmp_path, crl=next_crl(first) + first + other)
    crl = tmp_path / "server" / "crl.pem"
    crl.write_bytes(other)
    assert [server.look(), server.look()] == [False, True]
    crl.write_bytes(first + other)
    assert [server.look(), server.look()] == [False, False]
    assert "CRL 2 has been in use" in server.refusal


def test_INV_TLS6_a_crl_without_a_number_is_taken_as_before(tmp_path: Path) -> None:
    """RFC 5280 has CAs number their CRLs; some that are made by hand have none."""
    by = authority()
    plain = (
        x509.CertificateRevocationListBuilder().issuer_name(by.certificate.subject)
        .last_update(NOW - timedelta(hours=1)).next_update(NOW + timedelta(days=1)).sign(by.key, hashes.SHA256())
    )  # fmt: skip
    server = server_of(tmp_path, crl=next_crl(crl_of()))
    (tmp_path / "server" / "crl.pem").write_bytes(pem_of(plain))
    assert [server.look(), server.look()] == [False, True]


def test_a_ca_may_be_exchanged_by_way_of_both(tmp_path: Path) -> None:
    other = authority("another CA")
    server = server_of(tmp_path)
    client = ClientTls(
        put(tmp_path / "c", user_certificate(by=other), trusted=[authority()])
    ).context()
    assert not shake_hands(server.context(), client).is_good
    put(tmp_path / "server", node_certificate(), trusted=[authority(), other])
    assert [server.look(), server.look()] == [False, True]
    assert shake_hands(server.context(), client).is_good


def test_what_is_just_being_written_is_not_taken(tmp_path: Path) -> None:
    """INV-TLS2: a bundle that ends between two certificates looks whole."""
    server = server_of(tmp_path)
    former = server.context()
    ca = tmp_path / "server" / "ca.pem"
    first, second = pem_of(authority("another CA").certificate), ca.read_bytes()
    ca.write_bytes(first)
    assert not server.look()
    ca.write_bytes(first + second)
    assert not server.look()
    assert server.context() is former
    assert server.look()
    assert served_by(server, tmp_path) == ("eu", 1, "c1")


def test_what_was_gone_between_two_looks_is_not_taken(tmp_path: Path) -> None:
    """INV-TLS2: 1. Half of a bundle is there. 2. It is removed, and begun again. 3. The same half is there: these two looks are not in a row."""
    server = server_of(tmp_path)
    former = server.context()
    ca = tmp_path / "server" / "ca.pem"
    second = ca.read_bytes()
    half = pem_of(authority("another CA").certificate)
    ca.write_bytes(half)
    assert not server.look()
    ca.unlink()
    assert not server.look()
    ca.write_bytes(half)
    assert not server.look()
    assert server.context() is former
    ca.write_bytes(half + second)
    assert [server.look(), server.look()] == [False, True]


def test_what_came_once_before_the_former_files_were_back_has_to_come_twice_again(
    tmp_path: Path,
) -> None:
    """INV-TLS2: two looks in a row."""
    server = server_of(tmp_path)
    ca = tmp_path / "server" / "ca.pem"
    former, other = ca.read_bytes(), pem_of(authority("another CA").certificate)
    for content in (other, former, other):
        ca.write_bytes(content)
        assert not server.look()
    assert server.look()


def test_what_changes_between_judging_and_loading_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-TLS2: OpenSSL reads the files by itself, after they were judged."""
    server = server_of(tmp_path)
    former = server.context()
    put(tmp_path / "server", node_certificate(node_id=2))
    real = read_contents
    reads: list[int] = []

    def read(files: TlsFiles) -> Contents:
        found = real(files)
        reads.append(1)
        if len(reads) == 3:  # two looks, and what is judged
            put(tmp_path / "server", node_certificate(node_id=3))
        return found

    monkeypatch.setattr(tls, "read_contents", read)
    assert [server.look(), server.look()] == [False, False]
    assert server.context() is former
    assert "changed while they were read" in server.refusal
    assert [server.look(), server.look()] == [False, True]
    assert served_by(server, tmp_path) == ("eu", 3, "c1")


@pytest.mark.parametrize("part", ["own.pem", "own-key.pem", "ca.pem", "crl.pem"])
def test_a_half_written_file_changes_nothing_and_is_told(tmp_path: Path, part: str) -> None:
    """INV-TLS1"""
    server = server_of(tmp_path, crl=crl_of())
    former = server.context()
    path = tmp_path / "server" / part
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert [server.look(), server.look(), server.look()] == [False, False, False]
    assert server.context() is former
    assert part in server.refusal
    assert "cut off" in server.refusal
    path.write_bytes(whole)
    assert not server.look()
    assert server.refusal == ""


def test_a_key_without_its_certificate_changes_nothing_until_both_are_there(tmp_path: Path) -> None:
    """INV-TLS1"""
    server = server_of(tmp_path)
    former, key = server.context(), new_key()
    (tmp_path / "server" / "own-key.pem").write_bytes(key_pem(key))
    assert [server.look(), server.look()] == [False, False]
    assert server.context() is former
    assert "is not that of the first certificate" in server.refusal

    fits = issue_node(
        authority(), NodeName("eu", 3, "c1"), ["localhost"], key.public_key(), now=NOW
    )
    (tmp_path / "server" / "own.pem").write_bytes(pem_of(fits))
    assert [server.look(), server.look()] == [False, True]
    assert server.refusal == ""
    assert served_by(server, tmp_path) == ("eu", 3, "c1")


def test_a_file_that_is_gone_changes_nothing_and_is_told(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    (tmp_path / "server" / "own.pem").unlink()
    assert not server.look()
    assert "cannot be read (No such file or directory)" in server.refusal
    assert served_by(server, tmp_path) == ("eu", 1, "c1")


def test_what_is_missing_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TlsRefused, match="no certificate"):
        ServerTls(TlsFiles())
    files = put(tmp_path / "server", node_certificate())
    with pytest.raises(TlsRefused, match="no CA is named"):
        ServerTls(TlsFiles(files.certificate, files.key), "requested")
    with pytest.raises(TlsRefused, match="only one of certificate and key"):
        ClientTls(TlsFiles(files.certificate, ""))


# --- the watch -----------------------------------------------------------------------------------


class Hours:
    """A clock whose every sleep is as long as the test says."""

    def __init__(self, step_ms: int, sleeps: int) -> None:
        self.now_ms = int(NOW.timestamp() * 1000)
        self._step_ms, self._left = step_ms, sleeps
        self.before_look: Callable[[], None] = lambda: None

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        assert duration_ms > 0
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1
        self.now_ms += self._step_ms
        self.before_look()


async def at_once(work: Callable[[], None]) -> None:
    work()


async def test_the_watch_takes_changes_up_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = server_of(tmp_path)
    peers = ClientTls(server.files)
    put(tmp_path / "server", node_certificate(node_id=2))
    with pytest.raises(asyncio.CancelledError):
        await watch(TlsState([server, peers]), Hours(1000, 3))
    assert served_by(server, tmp_path) == ("eu", 2, "c1")
    assert [
        record.levelname
        for record in caplog.records
        if "count for new handshakes" in record.message
    ] == ["INFO"]


async def test_a_refusal_is_told_once_and_an_end_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-CTE1"""
    server = server_of(tmp_path)
    (tmp_path / "server" / "own-key.pem").write_text("nothing")
    clock = Hours(DAY_MS // 4, 4 * 45)
    clock.now_ms += 330 * DAY_MS
    state = TlsState([server, server])
    with pytest.raises(asyncio.CancelledError):
        await watch(state, clock, at_once)
    refusals = [record for record in caplog.records if "are not taken" in record.message]
    assert len(refusals) == 1
    of_node = [record for record in caplog.records if "OU=node 1" in record.message]
    assert [record.levelname for record in of_node[:30]] == ["WARNING"] * 30
    assert len(of_node) == pytest.approx(40, abs=1)  # 330 + 45 days are ten days behind its end
    assert of_node[-1].levelname == "ERROR"
    assert "tidemark cert renew" in of_node[0].message


def test_INV_CTE3_a_ca_that_has_ended_hides_no_end_of_another_in_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`LONG_AGO` is when both began; a CA lasts ten years."""
    past = new_authority("past CA", LONG_AGO - timedelta(days=3_600))
    server = ServerTls(put(tmp_path / "server", node_certificate(), trusted=[authority(), past]))
    ends_ms = int(authority().certificate.not_valid_after_utc.timestamp() * 1_000)
    with caplog.at_level(logging.WARNING, "tidemark.tls"):
        TlsState([server]).tell(ends_ms - 7 * DAY_MS)
    told = {record.levelname for record in caplog.records if "CA of tests" in record.message}
    assert told == {"WARNING"}, caplog.messages


def test_INV_CTE2_what_does_not_count_yet_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(tmp_path)
    own = next(end for end in server.ends if end.kind == "certificate")
    TlsState([server]).tell(own.begins_wall_ms - 1)
    told = [each.levelname for each in caplog.records if "counts only in" in each.message]
    assert told == ["ERROR"]


def test_a_refusal_that_comes_back_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(tmp_path)
    key, state = tmp_path / "server" / "own-key.pem", TlsState([server])
    right = key.read_text()
    for content in ("nothing", right, "nothing"):
        key.write_text(content)
        for _ in range(2):
            state.look(set())
            state.tell(0)
    assert sum("are not taken" in each.message for each in caplog.records) == 2


def test_metrics_say_what_is_left_and_what_is_refused(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    state, clock = TlsState([server]), Hours(0, 0)
    registry = CollectorRegistry()
    registry.register(TlsCollector(state, clock))
    own = str(tmp_path / "server" / "own.pem")
    left = registry.get_sample_value("tidemark_tls_certificate_seconds_left", {"file": own})
    assert left == 365 * 86400
    assert registry.get_sample_value("tidemark_tls_files_refused") == 0
    (tmp_path / "server" / "own-key.pem").write_text("nothing")
    server.look()
    server.look()
    clock.now_ms += 366 * DAY_MS
    assert registry.get_sample_value("tidemark_tls_files_refused") == 1
    left = registry.get_sample_value("tidemark_tls_certificate_seconds_left", {"file": own})
    assert left == -86400
    assert b"PRIVATE" not in generate_latest(registry)
