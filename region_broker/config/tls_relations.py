"""What the keys of TLS and of listeners must be together; a part of `config.relations`.

INV-CFT1  a port that is to speak TLS has a certificate and a key, and one that looks at certificates of others has a CA: else the
          configuration is refused, and no port falls back to what is readable by all
INV-CFT2  each listener has a name and a port of its own, and says where each node of the region is met by it

Pure. Not here: whether the files are there and fit together (`node.start_checks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from region_broker.config.rules import WILDCARDS, Problem, places_of, split

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


def listener_problems(
    listeners: Sequence[ListenerTable],
    own: Values | None,
    *,
    node_ids: Sequence[int],
    listen_host: str,
) -> Iterator[Problem]:
    """Yield where listeners are in each other's way, or in that of this node's own ports (`own`: its keys)."""
    for each in listeners:
        yield from _advertised_problems(each, node_ids)
    names: dict[str, str] = {}
    taken: list[tuple[str, str, int]] = []
    for key in ("kafka", "peer", "http"):
        if own is not None and key in own:
            host, port = split(own[key])
            taken.append((f"{key} = {own[key]!r}", listen_host or host, port))
    for each in listeners:
        name, bind = each.values.get("name"), each.values.get("bind")
        if name is not None:
            other = names.setdefault(name.lower(), each.path)
            if other != each.path:
                yield Problem(
                    f"{each.path}.name = {name!r}", f"is that of {other}, too", "each has its own"
                )
        if bind is None:
            continue
        host, port = split(bind)
        for what, other_host, other_port in taken:
            if port == other_port and _may_meet(host, other_host):
                wrong = f"is taken by {what}"
                yield Problem(f"{each.path}.bind = {bind!r}", wrong, "a port of its own")
                break
        taken.append((f"{each.path}.bind", host, port))


def _advertised_problems(listener: ListenerTable, node_ids: Sequence[int]) -> Iterator[Problem]:
    """Yield where a client that comes by a listener would be told of a node, and not where it is met by that listener (INV-LST2)."""
    advertised = listener.values.get("advertised")
    if advertised is None or not node_ids or (len(node_ids) == 1 and "=" not in advertised):
        return
    named = set(places_of(advertised, -1))
    lacking = [node_id for node_id in node_ids if node_id not in named]
    if lacking:
        shown = ", ".join(map(str, lacking))
        yield Problem(
            f"{listener.path}.advertised = {advertised!r}", f"does not say where node {shown} is met by this listener",
            "NODE_ID=host:port of each node of the region, with ; between: clients are told of all of them",
        )  # fmt: skip


def _may_meet(host: str, other: str) -> bool:
    known = {host.lower(), other.lower().removeprefix("[").removesuffix("]")}
    return len(known) == 1 or bool(known & WILDCARDS)
