"""One address of the Kafka port: what is spoken there, and who a connection speaks for before it has said anything.

INV-LST1  who came by an address with TLS and showed a certificate speaks for its principal, unless it is to log in: then for nobody
          until it has; nothing of a request is asked for that
INV-LST2  a client is told to meet each node where the address that it came by is met from outside
Not here: contexts and rules of names (`security`), logging in (`security.sasl`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from region_broker.ports.network import ByteStream, OnFailedHandshake, TlsContexts, unheard
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, host_of
from region_broker.wire.connection_state import ConnectionState

BY_TLS: Final = "TLS"


class NoIdentity(Exception):
    """A certificate speaks for nobody; the text says why."""


def _nobody(_certificate: bytes) -> str:
    return ANONYMOUS_PRINCIPAL


@dataclass(frozen=True, slots=True)
class Listening:
    """`name` is Kafka's name of a listener. `tls`: None for an address without.

    `must_log_in`: by SASL, before anything else. `principal_of`: whom a certificate speaks for; raises `NoIdentity`. `met_at`: node id -> where clients that came by here meet that node, and
    they are told of no others; None: as everybody does.
    """

    name: str = "PLAINTEXT"
    tls: TlsContexts | None = None
    must_log_in: bool = False
    principal_of: Callable[[bytes], str] = _nobody
    met_at: Mapping[int, tuple[str, int]] | None = None
    on_failed: OnFailedHandshake = unheard

    def state_of(self, stream: ByteStream) -> ConnectionState:
        """Return what the requests of a new connection share; raises `NoIdentity`."""
        principal, mechanism = ANONYMOUS_PRINCIPAL, ""
        certificate = None if self.tls is None or self.must_log_in else stream.certificate
        if certificate is not None:
            principal, mechanism = self.principal_of(certificate), BY_TLS
        host = host_of(stream.peer)
        return ConnectionState(
            identity=Identity(principal, host=host, mechanism=mechanism),
            must_log_in=self.must_log_in,
            is_encrypted=self.tls is not None,
            listener=self.name,
            met_at=self.met_at,
        )


PLAIN: Final = Listening()
