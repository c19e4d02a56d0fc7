"""Certificates of a private CA: made, renewed, revoked and described, as values.

INV-CRT1  a node's certificate serves and connects, and names its addresses and its node URI; a user's may only connect, names the
          user as its only CN, and no node; so nobody who was issued one of them can be taken for the other
INV-CRT2  a renewed certificate is the same in all that it says, but for its time and its serial number; it keeps its key, so that
          one file changes and no key travels, unless a new key is asked for
INV-CRT3  nothing is signed that ends after its CA, for another CA's certificate, or in place of a revoked one
INV-CRT4  a CRL holds what the one before it held, and its number grows

Keys are ECDSA on P-256: OpenSSL, Java and Go take them everywhere, and a handshake costs a third of one of RSA 2048. Keys and serial
numbers are drawn by OpenSSL. A CRL lasts as long as its CA: it says what is revoked, not that somebody has looked lately; an
earlier end would be one more day on which nobody gets in.
Not here: files (`authority_folder`), reading what others issued (`tls_files`), whom a certificate speaks for (`tls_identity`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from region_broker.security.node_names import NodeName, node_uri
from region_broker.security.tls_identity import UNREADABLE, node_in

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
DAYS_MAX: Final = 36_500
COMMON_NAME_LENGTH_MAX: Final = 64  # ub-common-name of RFC 5280
BEFORE_NOW: Final = timedelta(hours=1)
"""A certificate begins that long ago: clocks of machines differ."""
NODE_USES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
CLIENT_USES: Final = (ExtendedKeyUsageOID.CLIENT_AUTH,)

RevocationReason = Literal[
    "unspecified", "keyCompromise", "affiliationChanged", "superseded", "cessationOfOperation"
]


class CertificateRefused(Exception):
    """Something is not signed; the text says why, and what would be right."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA that can sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def ends(self) -> datetime:
        """When it ends, and all that it has signed with it."""
        return self.certificate.not_valid_after_utc


class Described(msgspec.Struct, frozen=True):
    """What a certificate says, in words for people."""

    subject: str
    names: tuple[str, ...]
    serves_as: str
    signed_by: str
    serial: str
    begins: datetime
    ends: datetime


def instant(wall_ms: int) -> datetime:
    """Return a moment of the wall clock, in whole seconds as certificates have them."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a file holds it: PKCS#8, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pem_of(what: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """Return a certificate or CRL as a file holds it."""
    return what.public_bytes(Encoding.PEM)


# --- the CA --------------------------------------------------------------------------------------


def new_authority(name: str, now: datetime, days: int = CA_DAYS) -> Authority:
    """Return a new CA. Part of its subject is drawn from its key: two CAs of one name are told apart by everybody."""
    _check_common_name(name, "the name of a CA")
    key = new_key()
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, key_id.digest.hex()[:16]),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE_NOW)
        .not_valid_after(now + _lifetime(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(of_ca=True), critical=True)
        .add_extension(key_id, critical=False)
        .add_extension(_authority_key_id(key.public_key()), critical=False)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def revocation_list(
    authority: Authority,
    former: x509.CertificateRevocationList | None,
    revoked: Sequence[int],
    now: datetime,
    reason: RevocationReason = "unspecified",
) -> x509.CertificateRevocationList:
    """Return the CA's next CRL: what `former` holds, and these serial numbers (INV-CRT4)."""
    number = 1
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(authority.ends)
        .add_extension(_authority_key_id(authority.key.public_key()), critical=False)
    )
    known: set[int] = set()
    if former is not None:
        if not former.is_signature_valid(authority.key.public_key()):
            raise CertificateRefused("the CRL that is there is not of this CA: put its own back")
        number = former.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
        for entry in former:
            known.add(entry.serial_number)
            builder = builder.add_revoked_certificate(entry)
    for serial in sorted(set(revoked) - known):
        builder = builder.add_revoked_certificate(_revoked(serial, now, reason))
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _revoked(serial: int, now: datetime, reason: RevocationReason) -> x509.RevokedCertificate:
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
    if reason != "unspecified":  # RFC 5280 5.3.1: then it is left out
        entry = entry.add_extension(x509.CRLReason(x509.ReasonFlags(reason)), critical=False)
    return entry.build()


# --- of nodes and users --------------------------------------------------------------------------


def issue_node(
    authority: Authority,
    node: NodeName,
    hosts: Sequence[str],
    public_key: CertificatePublicKeyTypes,
    *,
    now: datetime,
    days: int = LEAF_DAYS,
) -> x509.Certificate:
    """Return a node's certificate, for the hosts (names or addresses) that it is met at (INV-CRT1)."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, node.cluster_id),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, node.region),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, f"node {node.node_id}"),
        ]
    )
    names = [*map(_host_name, dict.fromkeys(hosts)), x509.UniformResourceIdentifier(node_uri(node))]
    extensions: list[x509.ExtensionType] = [
        x509.ExtendedKeyUsage(NODE_USES),
        x509.SubjectAlternativeName(names),
    ]
    return _signed(authority, subject, public_key, extensions, now=now, lifetime=_lifetime(days))


def issue_client(
    authority: Authority,
    user_name: str,
    public_key: CertificatePublicKeyTypes,
    *,
    now: datetime,
    days: int = LEAF_DAYS,
) -> x509.Certificate:
    """Return a user's certificate (INV-CRT1)."""
    _check_common_name(user_name, "the name of a user")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user_name)])
    return _signed(
        authority, subject, public_key, [x509.ExtendedKeyUsage(CLIENT_USES)],
        now=now, lifetime=_lifetime(days),
    )  # fmt: skip


def renewed(
    authority: Authority,
    old: x509.Certificate,
    *,
    now: datetime,
    days: int | None = None,
    public_key: CertificatePublicKeyTypes | None = None,
    former_authority: x509.Certificate | None = None,
) -> x509.Certificate:
    """Return the successor of a certificate of this CA, or of the one before it, for as long as it was given before (INV-CRT2)."""
    _check_signed_by(old, authority.certificate, former_authority)
    if is_authority(old):
        raise CertificateRefused("it is a CA: a new one is made by tidemark cert init")
    lifetime = old.not_valid_after_utc - old.not_valid_before_utc - BEFORE_NOW
    if days is not None:
        lifetime = _lifetime(days)
    kept = (x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
    extensions = [each.value for each in old.extensions if isinstance(each.value, kept)]
    return _signed(
        authority, old.subject, public_key or old.public_key(), extensions, now=now, lifetime=lifetime
    )  # fmt: skip


def check_not_revoked(certificate: x509.Certificate, crl: x509.CertificateRevocationList) -> None:
    """Refuse to go on with a certificate that its CA has revoked (INV-CRT3)."""
    if crl.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        raise CertificateRefused(
            "it is revoked, and nothing takes its place by renewal: issue a new one if that is meant (tidemark cert issue)"
        )


def _check_signed_by(
    certificate: x509.Certificate, own: x509.Certificate, former: x509.Certificate | None
) -> None:
    for authority in (own, former):
        if authority is not None and is_signed_by(certificate, authority):
            return
    raise CertificateRefused(
        f"it was signed by {certificate.issuer.rfc4514_string()!r}, not by this CA: name the CA that signed it by --former-ca if"
        " this one takes its place"
    )


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether a CA has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _signed(
    authority: Authority,
    subject: x509.Name,
    public_key: CertificatePublicKeyTypes,
    extensions: Sequence[x509.ExtensionType],
    *,
    now: datetime,
    lifetime: timedelta,
) -> x509.Certificate:
    if now >= authority.ends:
        raise CertificateRefused(
            f"the CA ended on {authority.ends:%Y-%m-%d}: make a new one (docs/runbooks/certificate_end.md)"
        )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - BEFORE_NOW, authority.certificate.not_valid_before_utc))
        .not_valid_after(min(now + lifetime, authority.ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(of_ca=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_authority_key_id(authority.key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _authority_key_id(key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _key_usage(*, of_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not of_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=of_ca,
        crl_sign=of_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    name = host.removesuffix(".")
    if not name.isascii() or not name or len(name) > 253:
        raise CertificateRefused(f"{host!r} is no name of a host: write it as DNS has it (xn--...)")
    return x509.DNSName(name)


def _check_common_name(name: str, what: str) -> None:
    if not 0 < len(name) <= COMMON_NAME_LENGTH_MAX or not name.isprintable():
        raise CertificateRefused(
            f"{what} has 1 to {COMMON_NAME_LENGTH_MAX} characters that can be printed, not {name!r}"
        )


def _lifetime(days: int) -> timedelta:
    if not 0 < days <= DAYS_MAX:
        raise CertificateRefused(f"{days} days: it must be 1 to {DAYS_MAX}")
    return timedelta(days=days)


# --- in words ------------------------------------------------------------------------------------


def described(certificate: x509.Certificate) -> Described:
    """Return what a certificate says, whoever made it; raises `CertificateRefused` where its extensions cannot be read."""
    try:
        return _described(certificate)
    except UNREADABLE as error:
        raise CertificateRefused(f"what the certificate says cannot be read ({error})") from error


def _described(certificate: x509.Certificate) -> Described:
    return Described(
        subject=certificate.subject.rfc4514_string(),
        names=tuple(_names_in(certificate)),
        serves_as=_serves_as(certificate),
        signed_by=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether it is a CA."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def user_in(certificate: x509.Certificate) -> str | None:
    """Return the user that a certificate of our CA was issued for; None for one of a node."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    is_client = len(names) == len(list(certificate.subject)) == 1 and not is_authority(certificate)
    return str(names[0].value) if is_client else None


def _names_in(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _serves_as(certificate: x509.Certificate) -> str:
    if is_authority(certificate):
        return "CA"
    node = node_in(certificate)
    if node is not None:
        return f"node {node.node_id} of region {node.region} in cluster {node.cluster_id}"
    try:
        uses = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return "server and client"
    serves = ExtendedKeyUsageOID.SERVER_AUTH in uses
    connects = ExtendedKeyUsageOID.CLIENT_AUTH in uses
    if serves and connects:
        return "server and client"
    return "server" if serves else "client" if connects else "neither server nor client"
