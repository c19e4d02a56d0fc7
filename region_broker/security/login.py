"""How a client proves who it is, and whom it believes: for Kafka and for HTTP, as one value that shows no secret.

INV-LGN1  neither `repr` nor an error text of it has a password or a token
INV-LGN2  a password is sent over TLS unless `protocol` says otherwise in as many words; over HTTP, password and token are sent to
          https addresses, and to this machine, and to nothing else
Not here: where a command finds the parts (`cli.context.credentials`), a node's own certificates (`tls`).
"""

import base64
import ssl
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, Literal
from urllib.parse import urlsplit

Protocol = Literal["", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"


class LoginRefused(ValueError):
    """Parts that do not go together, or a secret that would be sent in the clear; the text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """`ca`, `certificate` and `key` are paths of PEM files; `protocol` "" is what follows from the rest.

    With a `user` clients log in by `mechanism` over TLS; `http_token` goes before the password where HTTP is asked.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    mechanism: str = DEFAULT_MECHANISM
    user: str = ""
    password: str = field(default="", repr=False)
    http_token: str = field(default="", repr=False)
    protocol: Protocol = ""

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises `LoginRefused`."""
        if self.protocol and self.protocol not in PROTOCOLS:
            raise LoginRefused(f"protocol {self.protocol!r} is none of {', '.join(PROTOCOLS)}")
        if self.user and self.mechanism not in MECHANISMS:
            raise LoginRefused(f"mechanism {self.mechanism!r} is none of {', '.join(MECHANISMS)}")
        if bool(self.user) != bool(self.password):
            missing = "password" if self.user else "user"
            raise LoginRefused(f"there is no {missing}: a user and a password go together")
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            raise LoginRefused(f"there is no {missing}: a certificate and its key go together")
        if self.user and self.mechanism == "PLAIN" and self.protocol == "SASL_PLAINTEXT":
            raise LoginRefused("PLAIN sends the password itself: use SASL_SSL, or SCRAM")
        for name, value in (("user", self.user), ("http_token", self.http_token)):
            if any(ord(letter) < ord(" ") for letter in value):
                raise LoginRefused(f"{name} holds control characters")

    @property
    def kafka_protocol(self) -> str:
        """Return Kafka's `security.protocol`."""
        if self.protocol:
            return self.protocol
        if self.user:
            return "SASL_SSL"
        return "SSL" if self.ca or self.certificate else "PLAINTEXT"

    def kafka_config(self) -> dict[str, Any]:
        """Return what librdkafka is told; nothing where nothing was said. It holds the password."""
        protocol = self.kafka_protocol
        if protocol == "PLAINTEXT":
            return {}
        told: dict[str, Any] = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            files = {
                "ssl.ca.location": self.ca, "ssl.certificate.location": self.certificate, "ssl.key.location": self.key,
            }  # fmt: skip
            told |= {name: path for name, path in files.items() if path}
        if protocol.startswith("SASL"):
            told |= {
                "sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password,
            }  # fmt: skip
        return told

    def http_headers(self, url: str) -> dict[str, str]:
        """Return what a request to `url` says of who asks; raises `LoginRefused` where it would be said in the clear (INV-LGN2)."""
        if not self.http_token and not self.user:
            return {}
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_this_machine(parts.hostname or ""):
            raise LoginRefused(
                f"no password or token is sent to {parts.scheme}://{parts.hostname}, where everybody on the way can read it: give an https"
                " address"
            )
        if self.http_token:
            if not (self.http_token.isascii() and self.http_token.isprintable()):
                raise LoginRefused(
                    "the token for HTTP has characters that no token has: give what `tidemark token create` printed, and nothing else"
                )
            return {"Authorization": f"Bearer {self.http_token}"}
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def ssl_context(self) -> ssl.SSLContext:
        """Return what https addresses are asked with; raises `LoginRefused` where files cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise LoginRefused(f"the CA file {self.ca} {_unusable(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise LoginRefused(
                    f"the certificate {self.certificate} with the key {self.key} {_unusable(error)}"
                ) from error
        return context


def _unusable(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"cannot be used: it does not hold PEM that fits ({error.reason or error})"
    return f"cannot be read: {error.strerror or error}"


NO_SECURITY: Final = Security()
"""Nobody says who asks."""


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine by its very name: localhost, or a loopback address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
