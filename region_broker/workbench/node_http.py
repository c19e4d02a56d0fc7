"""Asks one node over its HTTP API: every request ends within its time-out, and an answer is bounded in size.

INV-WNH1  who asks is said as `workbench.credentials` has it, to https addresses and to this machine only (INV-LGN2)
INV-WNH2  a connection, which the kernel of a machine that lives answers, has CONNECT_TIMEOUT_S; the handshake of TLS, which a busy node answers no
          sooner than a question, has the time of the question
INV-WNH3  an order whose connection ends before its answer has an unknown outcome, and is told as that (`OutcomeUnknown`): the node may have taken it

http.client rather than aiohttp: a command must start within 150 ms.
Not here: which node to ask (`cli.region_client`), verdicts for applications (`client.verdicts`).
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from region_broker.security.login import LoginRefused
from region_broker.workbench.credentials import presented

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 3.0
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_REDIRECT: Final = 307
_REFUSED: Final = {
    "unknown-caller": " (tidemark context show says what counts: --http-token-file, or --user with --password-file)",
    "forbidden": " (which role or operation each order needs: docs/reference/security.md#the-http-port; --http-token-file names another token)",
}
"""What a node tells nobody, and whoever was refused needs (INV-WNH1)."""
_PORTS: Final = {"http": 80, "https": 443}


class BadUrl(Exception):
    """An address that is not http://host:port or https://host:port."""


class OutcomeUnknown(ConnectionError):
    """An order was sent, and the connection ended before its answer (INV-WNH3)."""


class ApiError(Exception):
    """A node answered with a problem (RFC 9457)."""

    def __init__(self, status: int, code: str, detail: str, url: str = "") -> None:
        """Keep status and code beside the text; `url`: where the answer says to go instead."""
        super().__init__(detail)
        self.url = url
        self.status = status
        self.code = code


def urls_of(text: str) -> list[str]:
    """Return the addresses of a comma list; raises `BadUrl`."""
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for url in urls:
        _split(url)
    return urls


def _split(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port; raises `BadUrl`, which shows no user and password that stand in the address."""
    parts = urlsplit(url)
    told = repr(url) if "@" not in url else "an address with '@'"
    try:
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"{told} is not http://host:port or https://host:port") from error
    if parts.scheme not in _PORTS or parts.hostname is None or "@" in url:
        raise BadUrl(f"{told} is not http://host:port or https://host:port")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    scheme, host, port = _split(url)
    kind = _Connection if scheme == "http" else _TlsConnection
    return kind(host, port, timeout_s)


class _Connection(http.client.HTTPConnection):
    """Connects within CONNECT_TIMEOUT_S, and then has its own time (INV-WNH2)."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__(host, port, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """See `http.client`."""
        super().connect()
        self.sock.settimeout(self._timeout_s)


class _TlsConnection(_Connection):
    """The same by TLS."""

    default_port = http.client.HTTPS_PORT

    def connect(self) -> None:
        """See `http.client`."""
        super().connect()
        context = presented().ssl_context()
        self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


def request(
    url: str, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0
) -> Any:
    """Return the JSON answer; raises `ApiError`, OSError (TimeoutError and `OutcomeUnknown` included).

    With a `body` it is an order.
    """
    return _decode(url, *_exchange(url, method, path, body, timeout_s))


def metrics_text(url: str, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
    """Return `/metrics` in Prometheus text format; raises `ApiError`, OSError (TimeoutError included)."""
    status, data = _exchange(url, "GET", "/metrics", None, timeout_s)
    if status >= _REDIRECT:
        raise ApiError(status, "", f"{url} answered {status} to /metrics")
    return data.decode(errors="replace")


def _exchange(
    url: str, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
) -> tuple[int, bytes]:
    try:
        said = presented().http_headers(url)
    except LoginRefused as error:
        raise BadUrl(str(error)) from error
    connection = _connection(url, timeout_s)
    try:
        try:
            connection.connect()
        except ssl.SSLError as error:
            raise ConnectionError(f"{url} {_tls_problem(error)}") from error
        headers = {"Accept": "application/json", **said}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX + 1)
            if response.length and len(data) <= ANSWER_BYTES_MAX:  # of which it says nothing itself
                raise http.client.IncompleteRead(data, response.length)
        except (OSError, http.client.HTTPException) as error:
            raise _unanswered(url, error, is_order=body is not None) from error
    finally:
        connection.close()
    if len(data) > ANSWER_BYTES_MAX:
        raise ConnectionError(f"{url} answered more than {ANSWER_BYTES_MAX} bytes")
    return response.status, data


def _unanswered(url: str, error: Exception, *, is_order: bool) -> OSError:
    """Return what to raise where no answer came to what was sent, or half of one (INV-WNH3)."""
    if isinstance(error, TimeoutError):
        return error
    ended = isinstance(error, ConnectionError | http.client.IncompleteRead | ssl.SSLEOFError)
    if ended and is_order:
        return OutcomeUnknown(f"{url} ended the connection before it answered ({error!r})")
    if isinstance(error, http.client.HTTPException):
        or_tls = "" if url.startswith("https:") else ", or does it speak TLS by now (https://)"
        return ConnectionError(
            f"{url} does not speak HTTP; is it the Kafka or the peer port{or_tls}?"
        )
    if isinstance(error, ssl.SSLError):
        return ConnectionError(f"{url} {_tls_problem(error)}")
    return ConnectionError(f"{url} closed the connection: {error}")


def _tls_problem(error: ssl.SSLError) -> str:
    """Return what is the matter, and what to do: OpenSSL says neither."""
    if isinstance(error, ssl.SSLCertVerificationError):
        ca = presented().ca or "this system, as there is no --ca"
        return f"shows a certificate that does not count by the CAs of {ca}: {error.verify_message}"
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError) or error.reason in _NO_TLS:
        return "closed the connection as TLS began: does it speak TLS at all, or not yet (http://)?"
    return (
        f"ended the handshake of TLS ({error}): where it is the one that refuses, its log says why"
    )


def _decode(url: str, status: int, data: bytes) -> Any:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(
            f"{url} answered {status} without JSON; is it Tidemark, and its HTTP port?"
        ) from error
    if status >= _REDIRECT:
        body = decoded if isinstance(decoded, dict) else {}
        detail = str(body.get("detail", f"{url} answered {status}"))
        detail += _REFUSED.get(str(body.get("code", "")), "")
        raise ApiError(status, str(body.get("code", "")), detail, str(body.get("url", "")))
    return decoded
