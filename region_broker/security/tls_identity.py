"""Whom a certificate speaks for: a user by its subject, a node by a URI in it. Read by `cryptography`, never by cutting text.

INV-TID1  a node is who a URI `tidemark:node/CLUSTER/REGION/NODE_ID` in its certificate says, of which there is exactly one; a
          certificate without it, or one that may not serve and connect both, is no node's
INV-TID2  no value of a subject can look like another attribute: what would end it (`,` `+` `=` ...) is escaped before a rule sees it
INV-TID4  a certificate that gives no principal is refused, and not taken for anonymous

Names are Kafka's: `principal_of` gives what `SslPrincipalMapper` gives for `X500Principal.getName()` (RFC 2253), so ACLs that were
written for Kafka go on. The URI has no host, as a cluster's name is none (RFC 5280 4.2.1.6 wants one to be an address).
The certificates that come here have been verified: the handshake refuses all others (`tls`).
Not here: Kafka's mapping rules (`principal_rules`), what a principal may do (`access`), certificates being made (`certificates`).
"""

import re
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from region_broker.security.identity import user
from region_broker.security.node_names import NodeName
from region_broker.security.principal_rules import PrincipalRules

NAME_LENGTH_MAX: Final = 1024
NODE_ID_MAX: Final = 2**31 - 1
_NODE_URI: Final = re.compile(
    r"tidemark:node/([A-Za-z0-9_][A-Za-z0-9._-]{0,63})/([A-Za-z0-9_][A-Za-z0-9._-]{0,63})/(0|[1-9][0-9]{0,9})"
)
_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
"""The attributes that RFC 2253 names; all others are shown by number and bytes."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises for a certificate that it cannot make sense of."""


class NoPrincipal(Exception):
    """A certificate gives no principal; the text says why."""


# --- nodes ---------------------------------------------------------------------------------------


def node_of(der: bytes) -> NodeName | None:
    """Return the node that a certificate is of; None for one of a client, or of somebody else (INV-TID1)."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        return node_in(certificate)
    except UNREADABLE:  # what cannot be read is no node's
        return None


def are_of(shown: bytes, believed: bytes) -> bool:
    """Return whether some certificate of a chain (PEM) was signed by one of these CAs, or is one of them; raises `ValueError`."""
    chain, authorities = map(x509.load_pem_x509_certificates, (shown, believed))
    return any(_is_of(each, ca) for each in chain for ca in authorities)


def _is_of(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    if certificate == ca:
        return True
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def node_in(certificate: x509.Certificate) -> NodeName | None:
    """Return the same of a certificate that has been read; raises ValueError where its extensions cannot be."""
    try:
        return _node_in(certificate)
    except UNREADABLE as error:
        raise ValueError(f"its extensions cannot be read ({error})") from error


def _node_in(certificate: x509.Certificate) -> NodeName | None:
    if not _may_serve_and_connect(certificate):
        return None
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = [
        uri
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        if uri.lower().startswith("tidemark:")
    ]
    found = _NODE_URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None or int(found[3]) > NODE_ID_MAX:
        return None
    return NodeName(region=found[2], node_id=int(found[3]), cluster_id=found[1])


def _may_serve_and_connect(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:  # not limited
        return True
    return {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usage)


# --- users ---------------------------------------------------------------------------------------


def principal_of(der: bytes, rules: PrincipalRules) -> str:
    """Return the principal of a certificate, as `User:NAME`; raises `NoPrincipal` (INV-TID4)."""
    try:
        subject = subject_text(x509.load_der_x509_certificate(der).subject)
    except UNREADABLE as error:
        raise NoPrincipal(f"its subject cannot be read ({error})") from error
    if not subject:
        raise NoPrincipal("it has no subject")
    if len(subject) > NAME_LENGTH_MAX:
        raise NoPrincipal(f"its subject has over {NAME_LENGTH_MAX} characters")
    name = rules.name(subject)
    if not name:
        raise NoPrincipal("none of the mapping rules gives a name for its subject")
    if not name.isprintable():
        raise NoPrincipal("its name holds characters that cannot be printed")
    return user(name)


def subject_text(name: x509.Name) -> str:
    """Return a name as RFC 2253 and Java write it, the last part first (INV-TID2); raises ValueError."""
    return ",".join(
        "+".join(_attribute_text(attribute) for attribute in part) for part in reversed(name.rdns)
    )


def _attribute_text(attribute: x509.NameAttribute[Any]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{keyword or attribute.oid.dotted_string}=#{_value_der(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    inner = value.strip(" ")
    start = len(value) - len(value.lstrip(" "))
    before, behind = "\\ " * start, "\\ " * (len(value) - start - len(inner))
    shown = "".join(
        "\\00" if letter == "\0" else f"\\{letter}" if letter in _ESCAPED else letter
        for letter in inner
    )
    return f"{before}{shown}{behind}"


def _value_der(attribute: x509.NameAttribute[Any]) -> bytes:
    """Return the value of an attribute as it is encoded: a Name of it alone is four headers (set, pair, number) before it."""
    der = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # into the name, its one part, its one pair
        der = _content(der)
    number = 2 + der[1]
    return der[number:]


def _content(der: bytes) -> bytes:
    length = der[1]
    return der[2 + (length & 0x7F if length & 0x80 else 0) :]
