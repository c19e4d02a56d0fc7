"""What the keys of TLS must be together, of listeners, too; a part of `config.relations`.

INV-CFT1  a port that is to speak TLS has a certificate and a key, and one that looks at certificates of others has a CA: else the
          configuration is refused, and no port falls back to what is readable by all

Pure. Not here: whether the files are there and fit together (`node.start_checks`), what listeners must be beside that
(`listener_relations`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from region_broker.config.rules import Problem

ENCRYPTED: Final = frozenset({"SSL", "SASL_SSL"})
NO_CLIENT_AUTH: Final = "none"
_PROTOCOL_KEYS: Final = ("security_protocol", "peer_security_protocol", "http_security_protocol")
_MAKES_THEM: Final = "the paths of PEM files: tidemark cert makes them where there are none"

Values = Mapping[str, Any]


class ListenerTable(NamedTuple):
    """What is right by itself of a listener, and where it stands (`listeners[0]`)."""

    path: str
    values: Values


def tls_problems(values: Values) -> Iterator[Problem]:
    """Yield what a node lacks for what it is to speak; `listeners` in `values`: their tables."""
    listeners: Sequence[ListenerTable] = values.get("listeners", ())
    speaking = [
        *(f'{key} = "{values[key]}"' for key in _PROTOCOL_KEYS if values.get(key) in ENCRYPTED),
        *(
            f'{each.path}.security_protocol = "{each.values["security_protocol"]}"'
            for each in listeners
            if each.values.get("security_protocol") in ENCRYPTED
        ),
    ]
    certificate, key = values.get("tls_certificate"), values.get("tls_key")
    if certificate is not None and key is not None:
        if speaking and not (certificate and key):
            lacking = " and ".join(
                name for name in ("tls_certificate", "tls_key") if not values[name]
            )
            yield Problem(speaking[0], f"needs {lacking}", _MAKES_THEM)
        elif bool(certificate) != bool(key):
            given, lacking = (
                ("tls_certificate", "tls_key") if certificate else ("tls_key", "tls_certificate")
            )
            yield Problem(
                f"{given} = {values[given]!r}", f"has no {lacking} beside it", "both, or none"
            )
    yield from _ca_problems(values, listeners)


def _ca_problems(values: Values, listeners: Sequence[ListenerTable]) -> Iterator[Problem]:
    if values.get("tls_crl") and values.get("tls_ca") == "":
        yield Problem(
            f"tls_crl = {values['tls_crl']!r}", "has no tls_ca beside it", "the CA whose list it is"
        )
    for path, table in (("", values), *((f"{each.path}.", each.values) for each in listeners)):
        wanted = table.get("tls_client_auth", NO_CLIENT_AUTH)
        if wanted == NO_CLIENT_AUTH or "security_protocol" not in table:
            continue
        name = f'{path}tls_client_auth = "{wanted}"'
        if table["security_protocol"] not in ENCRYPTED:
            wrong = (
                f'has no TLS to ask in: {path}security_protocol is "{table["security_protocol"]}"'
            )
            yield Problem(name, wrong, f'"{NO_CLIENT_AUTH}", or "SSL" or "SASL_SSL" there')
        elif values.get("tls_ca") == "":
            yield Problem(name, "has no tls_ca to judge certificates by", "the CA of your clients")
    if values.get("peer_security_protocol") in ENCRYPTED and values.get("tls_ca") == "":
        wrong = "has no tls_ca: nodes look at each other's certificates"
        yield Problem('peer_security_protocol = "SSL"', wrong, "the CA of all nodes of the cluster")
