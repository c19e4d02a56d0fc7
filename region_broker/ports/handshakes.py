"""How many TLS handshakes may be under way at one port, and why one failed, in words.

INV-PHS1  no more handshakes are under way than the limits say, of one address and in all; whoever comes then takes the place of the
          oldest that is under way for longer than `patience_s`, and is turned away if none is
INV-PHS3  where there are too many in all, the oldest of the address that has the most gives way at once to one that has fewer: a flood
          from some addresses keeps out nobody at others
INV-PHS2  a reason is one of `REASONS`, whatever the other side sends
A real client is done within a few round trips, so what gives way is what says nothing.

Pure. Not here: sockets (`ports.system.tls_accept`), who counts and logs (`security.failed_handshakes`).
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TIMEOUT_S: Final = 10.0
IN_ALL_MAX: Final = 512
PER_ADDRESS_MAX: Final = 128
PATIENCE_S: Final = 1.0
"""How old a handshake may become that keeps another out."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long a closed TLS connection may take to say so."""

TOO_MANY: Final = "too_many"
TOO_SLOW: Final = "too_slow"
GONE: Final = "gone"
NO_TLS: Final = "no_tls"
NO_CERTIFICATE: Final = "no_certificate"
UNKNOWN_CA: Final = "unknown_ca"
EXPIRED: Final = "expired"
REVOKED: Final = "revoked"
BAD_CERTIFICATE: Final = "bad_certificate"
WE_ARE_REFUSED: Final = "refused_by_peer"
NO_COMMON_TLS: Final = "no_common_tls"
OTHER: Final = "other"

TEXTS: Final = {
    TOO_MANY: "too many handshakes are under way: it is to try again",
    TOO_SLOW: "it did not end its handshake in time",
    GONE: "it closed the connection in the middle of the handshake: it left, or it does not accept the certificate of this side, which its own log tells",
    NO_TLS: "it does not speak TLS: a client without it (security.protocol), or one of another protocol?",
    NO_CERTIFICATE: "it showed no certificate, and this port asks for one",
    UNKNOWN_CA: "its certificate is of a CA that tls_ca does not hold: put that CA into it, beside those that are there, if it is to be believed",
    EXPIRED: "its certificate is not valid at this time: renew it, or set the clock",
    REVOKED: "its certificate was revoked",
    BAD_CERTIFICATE: "its certificate does not count",
    WE_ARE_REFUSED: "it does not accept the certificate of this side: does it know our CA, and was it told our name?",
    NO_COMMON_TLS: "it speaks no version of TLS, or no cipher, that is allowed here",
    OTHER: "the handshake failed",
}
REASONS: Final = frozenset(TEXTS)
_OF_ALERTS: Final = {
    "CERTIFICATE_EXPIRED": "by its clock the certificate of this side, or a CRL that it has, has ended: renew it (tidemark cert show says when it ends), or set the clock that is wrong",
    "CERTIFICATE_REVOKED": "the certificate of this side is revoked by the CRL that it has: have another one issued, with a key of its own",
    "UNKNOWN_CA": "it does not hold the CA of the certificate of this side, or no CRL of that CA beside others (tls_ca, tls_crl; of a client ssl.ca.location, --ca)",
    "BAD_CERTIFICATE": "it does not accept the certificate of this side: is its name the one by which it was called, and does it count already by its clock?",
    "CERTIFICATE_REQUIRED": "it wants a certificate of this side, and was shown none that it could use",
}
"""What the other side says, by TLS's alerts, of us."""

# X509_V_ERR_… of OpenSSL.
_BY_VERIFY_CODE: Final = {
    2: UNKNOWN_CA, 18: UNKNOWN_CA, 19: UNKNOWN_CA, 20: UNKNOWN_CA, 21: UNKNOWN_CA, 9: EXPIRED, 10: EXPIRED,
    23: REVOKED,
}  # fmt: skip
_BY_REASON: Final = {
    "HTTP_REQUEST": NO_TLS,
    "HTTPS_PROXY_REQUEST": NO_TLS,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "UNKNOWN_PROTOCOL": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "UNEXPECTED_MESSAGE": NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": NO_CERTIFICATE,
    "UNEXPECTED_EOF_WHILE_READING": GONE,
    "UNSUPPORTED_PROTOCOL": NO_COMMON_TLS,
    "VERSION_TOO_LOW": NO_COMMON_TLS,
    "NO_SHARED_CIPHER": NO_COMMON_TLS,
    "NO_SUITABLE_SIGNATURE_ALGORITHM": NO_COMMON_TLS,
    "NO_SUITABLE_GROUPS": NO_COMMON_TLS,
}


def reason_of(error: BaseException) -> str:
    """Return which of `REASONS` an error of a handshake is."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_VERIFY_CODE.get(error.verify_code, BAD_CERTIFICATE)
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        return WE_ARE_REFUSED if "_ALERT_" in name else _BY_REASON.get(name, OTHER)
    if isinstance(error, ConnectionAbortedError):  # asyncio's word for its time-out
        return TOO_SLOW
    return GONE if isinstance(error, OSError) else OTHER


def text_of(error: BaseException) -> str:
    """Return why a handshake failed, for people; what OpenSSL says of it stands behind."""
    reason = reason_of(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{TEXTS[reason]} ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and error.reason:
        told = _OF_ALERTS.get(error.reason.partition("_ALERT_")[2], TEXTS[reason])
        return f"{told} ({error.reason})"
    return TEXTS[reason]


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """What bounds the handshakes of one port."""

    per_address: int = PER_ADDRESS_MAX
    in_all: int = IN_ALL_MAX
    patience_s: float = PATIENCE_S
    timeout_s: float = TIMEOUT_S


DEFAULT_HANDSHAKES: Final = HandshakeLimits()


@dataclass(slots=True, eq=False)
class Place:
    """One handshake under way; `give_way` ends it."""

    address: str
    since_s: float
    give_way: Callable[[], None]


class HandshakePlaces:
    """The handshakes under way at one port, in the order they came."""

    def __init__(self, bounds: HandshakeLimits) -> None:
        """None is under way."""
        self._bounds = bounds
        self._all: dict[Place, None] = {}
        self._by_address: dict[str, dict[Place, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        """How many handshakes -> the addresses that have so many, so that nobody searches while there are too many."""
        self._most = 0

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._all)

    def take(self, address: str, now_s: float, give_way: Callable[[], None]) -> Place | None:
        """Return a place for who comes from `address`, None where there is none (INV-PHS1, INV-PHS3)."""
        own = self._by_address.get(address, {})
        oldest: Place | None = None
        if len(own) >= self._bounds.per_address:
            oldest = next(iter(own))
        elif len(self._all) >= self._bounds.in_all:
            if self._most > len(own) + 1:
                most = next(iter(self._by_count[self._most]))
                self._end(next(iter(self._by_address[most])))
            else:
                oldest = next(iter(self._all))
        if oldest is not None:
            if now_s - oldest.since_s < self._bounds.patience_s:
                return None
            self._end(oldest)
        place = Place(address, now_s, give_way)
        self._all[place] = None
        own = self._by_address.setdefault(address, {})
        own[place] = None
        self._count(address, len(own) - 1, len(own))
        return place

    def leave(self, place: Place) -> None:
        """Give a place back; one that is given back already is left alone."""
        if self._all.pop(place, place) is place:
            return
        own = self._by_address[place.address]
        del own[place]
        self._count(place.address, len(own) + 1, len(own))
        if not own:
            del self._by_address[place.address]

    def _end(self, place: Place) -> None:
        self.leave(place)
        place.give_way()

    def _count(self, address: str, before: int, now: int) -> None:
        """Note how many handshakes of an address are under way."""
        if before:
            former = self._by_count[before]
            del former[address]
            if not former:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[address] = None
        self._most = max(self._most, now)
        if self._most not in self._by_count:
            self._most = now if now in self._by_count else 0
