"""How many handshakes of TLS are under way at once, and the words for those that failed."""

import ssl

import pytest

from region_broker.ports import handshakes
from region_broker.ports.handshakes import REASONS, HandshakeLimits, HandshakePlaces, reason_of

BOUNDS = HandshakeLimits(per_address=3, in_all=5, patience_s=1.0)


def test_INV_PHS1_the_oldest_gives_way_once_it_is_old_and_nobody_else_does() -> None:
    places, gave_way = HandshakePlaces(BOUNDS), []

    def take(address: str, now_s: float, name: str) -> bool:
        return places.take(address, now_s, lambda: gave_way.append(name)) is not None

    assert [take("a", 0.1 * at, f"a{at}") for at in range(3)] == [True] * 3
    assert not take("a", 0.9, "a3"), "three of one address, none of them old"
    assert take("b", 0.9, "b0"), "another address has its own places"
    assert take("a", 1.0, "a4"), "a0 is a second old"
    assert gave_way == ["a0"]
    assert take("c", 1.0, "c0")
    assert len(places) == 5


def test_INV_PHS1_where_everybody_has_as_many_the_oldest_of_all_gives_way_once_it_is_old() -> None:
    places, gave_way = HandshakePlaces(HandshakeLimits(per_address=9, in_all=3)), []

    def take(address: str, now_s: float) -> bool:
        return places.take(address, now_s, lambda: gave_way.append(address)) is not None

    assert [take(address, 0.0) for address in "abc"] == [True] * 3
    assert not take("d", 0.9)
    assert take("d", 1.0)
    assert gave_way == ["a"]
    assert len(places) == 3


def test_INV_PHS3_who_has_the_most_gives_way_to_who_has_fewer() -> None:
    places, gave_way = HandshakePlaces(HandshakeLimits(per_address=4, in_all=6)), []

    def take(address: str, name: str) -> bool:
        return places.take(address, 0.0, lambda: gave_way.append(name)) is not None

    assert all(take(name[0], name) for name in ("a0", "b0", "a1", "b1", "a2", "c0"))
    assert take("d", "d0"), "a has three"
    assert gave_way == ["a0"]
    assert not take("a", "a3"), "a has two, as many as anybody"
    assert not take("c", "c1"), "c has one, and nobody more than one above that"
    assert take("e", "e0")
    assert gave_way[1:] in (["a1"], ["b0"])
    assert len(places) == 6


def test_INV_PHS1_a_place_is_given_back_once() -> None:
    places = HandshakePlaces(HandshakeLimits(per_address=1, in_all=2))
    first = places.take("a", 0.0, lambda: None)
    assert first is not None
    places.leave(first)
    second = places.take("a", 0.0, lambda: None)
    assert second is not None
    places.leave(first)
    assert places.take("a", 0.0, lambda: None) is None, "the second one holds its place"
    places.leave(second)
    assert len(places) == 0


def _verify(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "as OpenSSL says it"
    return error


def _ssl(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "failed")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        # X509_V_ERR_CERT_HAS_EXPIRED, …_REVOKED, …_UNABLE_TO_GET_ISSUER_CERT_LOCALLY, …_HOSTNAME_MISMATCH of x509_vfy.h
        (_verify(10), "expired"),
        (_verify(23), "revoked"),
        (_verify(20), "unknown_ca"),
        (_verify(62), "bad_certificate"),
        (_ssl("HTTP_REQUEST"), "no_tls"),
        (_ssl("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "no_certificate"),
        (_ssl("TLSV1_ALERT_UNKNOWN_CA"), "refused_by_peer"),
        (_ssl("NO_SHARED_CIPHER"), "no_common_tls"),
        (_ssl("SOMETHING_NEW"), "other"),
        (ConnectionAbortedError("SSL handshake is taking longer than 10 seconds"), "too_slow"),
        (ConnectionResetError(), "gone"),
    ],
)
def test_INV_PHS2_each_failure_has_a_word_of_a_fixed_set(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason
    assert reason in REASONS
    assert reason == "refused_by_peer" or handshakes.text_of(error).startswith(
        handshakes.TEXTS[reason]
    )


@pytest.mark.parametrize(
    ("alert", "told"),
    [
        # Alerts 45, 44, 48, 42 and 116 of RFC 8446, 6.2, as OpenSSL calls them.
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "has ended: renew it"),
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "is revoked"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not hold the CA of the certificate of this side"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "is its name the one by which it was called"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "was shown none"),
    ],
)
def test_what_the_other_side_has_against_us_is_told_by_its_alert(alert: str, told: str) -> None:
    """Where the certificate of this side has ended, whoever looks at this node's log must not look for a CA."""
    error = _ssl(alert)
    assert reason_of(error) == "refused_by_peer"
    assert told in handshakes.text_of(error)
    assert alert in handshakes.text_of(error)


def test_an_address_that_has_left_is_forgotten() -> None:
    places = HandshakePlaces(HandshakeLimits())
    for number in range(10):
        place = places.take(f"10.0.0.{number}", 0.0, lambda: None)
        assert place is not None
        places.leave(place)
        places.leave(place)
    assert (len(places), places._by_address) == (0, {})
