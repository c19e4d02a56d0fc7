"""How a connection to one node begins: TLS where it is asked for, and a login, by what the command presents (`workbench.credentials`).

INV-NLG1  nothing but the login is asked before it is done, and a server that does not prove itself in SCRAM is asked nothing
Not here: what is asked then (`node_requests`).
"""

import secrets
import socket
from typing import TYPE_CHECKING, Any, Protocol

from region_broker.security.login import Security

if TYPE_CHECKING:
    from kio.static.protocol import Entity

SASL_AUTHENTICATION_FAILED = 58
_NONCE_BYTES = 24


class Ask(Protocol):
    """Sends a request, and returns the answer of that type."""

    def __call__(self, request: "Entity", answer_type: Any) -> Any:
        """Ask."""


class LoginFailed(Exception):
    """The node does not let us in; the text says why."""


def secured(connection: socket.socket, host: str, security: Security) -> socket.socket:
    """Return the connection under TLS where `security` says so; raises OSError, and has closed it then."""
    if not security.kafka_protocol.endswith("SSL"):
        return connection
    try:
        return security.ssl_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def log_in(ask: Ask, security: Security) -> None:
    """Log in where `security` says so (INV-NLG1); raises `LoginFailed`, and what `ask` raises."""
    if not security.kafka_protocol.startswith("SASL"):
        return
    from kio.schema.sasl_handshake.v1 import request, response

    mechanism = security.mechanism
    told = ask(request.SaslHandshakeRequest(mechanism=mechanism), response.SaslHandshakeResponse)
    if told.error_code.value:
        offered = ", ".join(told.mechanisms) or "none"
        raise LoginFailed(f"it does not take {mechanism}: give --mechanism, one of {offered}")
    if mechanism == "PLAIN":
        _said(ask, f"\0{security.user}\0{security.password}".encode())
        return
    from region_broker.security.sasl.scram_client import ScramClient, ServerNotBelieved

    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    client = ScramClient(mechanism, security.user, security.password, nonce)
    try:
        client.check(_said(ask, client.final(_said(ask, client.first()))))
    except ServerNotBelieved as error:
        raise LoginFailed(f"the login was broken off: {error}") from error


def _said(ask: Ask, message: bytes) -> bytes:
    from kio.schema.sasl_authenticate.v2 import request, response

    answer = ask(
        request.SaslAuthenticateRequest(auth_bytes=message), response.SaslAuthenticateResponse
    )
    if answer.error_code.value:
        raise LoginFailed(str(answer.error_message or answer.error_code.name))
    return bytes(answer.auth_bytes)
