"""A connection to one node's Kafka port, for what client libraries do not ask: with TLS and a login, as this process presents itself.

Not here: what is asked (`admin.node_requests`), SCRAM (`security.sasl.scram_client`), as whom (`workbench.credentials`).
"""

import secrets
import socket
import ssl
import struct
from typing import Final

from region_broker.security.login import Security
from region_broker.security.sasl.scram_client import ScramClient, ServerRefused
from region_broker.workbench.credentials import presented

PLAIN: Final = "PLAIN"
_HANDSHAKE: Final = (17, 1)
_AUTHENTICATE: Final = (36, 1)
_ANSWER_BYTES_MAX: Final = 64 * 1024
_NONCE_BYTES: Final = 24
_ALERT: Final = "_ALERT_"
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})


class LoginFailed(Exception):
    """The node does not let us in; the text says what it said."""


def opened(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection on which requests may be sent; raises `LoginFailed`, OSError (ssl.SSLError included)."""
    security = presented()
    stream = socket.create_connection((host, port), timeout_s)
    try:
        if security.kafka_protocol.endswith("SSL"):
            stream = security.ssl_context().wrap_socket(stream, server_hostname=host)
        if security.kafka_protocol.startswith("SASL"):
            _log_in(stream, security)
    except BaseException:
        stream.close()
        raise
    return stream


def _log_in(stream: socket.socket, security: Security) -> None:
    mechanism = security.mechanism.encode()
    answer = _asked(stream, _HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism)
    (error,) = struct.unpack_from(">h", answer)
    if error:
        raise LoginFailed(f"the node does not take logins by {security.mechanism} (error {error})")
    if security.mechanism == PLAIN:
        _authenticated(stream, f"\0{security.user}\0{security.password}".encode())
        return
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    exchange = ScramClient(security.mechanism, security.user, security.password, nonce)
    try:
        challenge = _authenticated(stream, exchange.first())
        exchange.check(_authenticated(stream, exchange.final(challenge)))
    except ServerRefused as error:
        raise LoginFailed(str(error)) from error


def _authenticated(stream: socket.socket, message: bytes) -> bytes:
    """Return what the node answers to a message of a login; raises `LoginFailed`."""
    answer = _asked(stream, _AUTHENTICATE, struct.pack(">i", len(message)) + message)
    try:
        error, length = struct.unpack_from(">hh", answer)
        at = 4 + max(length, 0)
        text = answer[4:at].decode(errors="replace") if length > 0 else ""
        if error:
            raise LoginFailed(f"the node does not know us: {text or f'error {error}'}")
        (size,) = struct.unpack_from(">i", answer, at)
    except struct.error as malformed:
        raise LoginFailed("the node does not answer as Kafka does") from malformed
    return answer[at + 4 : at + 4 + size]


def _asked(stream: socket.socket, api: tuple[int, int], body: bytes) -> bytes:
    """Return the answer, from behind its correlation id on."""
    header = struct.pack(">hhih", *api, 0, -1)
    stream.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    (size,) = struct.unpack(">i", _exactly(stream, 4))
    if not 4 < size <= _ANSWER_BYTES_MAX:
        raise LoginFailed("what answers does not speak Kafka; is it the HTTP or the peer port?")
    return _exactly(stream, size)[4:]


def why_closed() -> str:
    """Return what is likely where a port takes a connection and ends it at the first request."""
    if presented().kafka_protocol.endswith("SSL"):
        return "does a node listen there, and is it its Kafka port?"
    return "does a node listen there, or does its port speak TLS (--ca, or --protocol)?"


def is_alert(error: ssl.SSLError) -> bool:
    """Return whether the other side ended a handshake by its own word: a node lives there, and does not let us in."""
    return _ALERT in (error.reason or "")


def handshake_problem(error: ssl.SSLError) -> str:
    """Return what is the matter, and what to do: OpenSSL says neither."""
    if error.reason in _NO_TLS:
        return "does not speak TLS (--protocol PLAINTEXT, or SASL_PLAINTEXT, where it should not)"
    if not is_alert(error):
        return f"ended the handshake of TLS ({error})"
    said = (error.reason or "").partition(_ALERT)[2].replace("_", " ").lower()
    shown = presented().certificate
    if not shown:
        return f"refuses us ({said}): it asks for a client's certificate (--certificate, --certificate-key), or is another port; its log says why"
    return f"refuses the certificate in {shown} ({said}): tidemark cert show {shown}, and the node's log, say why"


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = stream.recv(size - len(found))
        if not more:
            raise LoginFailed(
                f"the node closed the connection instead of letting us in: {why_closed()}"
            )
        found += more
    return found
