"""The files of TLS as one set: read whole, judged, and only then used.

INV-TLF1  a set is used only if it is whole and fits together: every block of every file can be read, the key is that of the first
          certificate, and a CRL is signed by the CA that it names, where that one is in the set
A set is judged by its bytes. Whether its time has come or gone is another question (`certificate_ends`).
Not here: reading them (`tls_contents`), contexts, and when files are read again (`tls`); making certificates (`certificates`).
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from region_broker.security.certificate_ends import End, EndKind
from region_broker.security.tls_contents import Contents, CrlSource, TlsFiles, TlsRefused
from region_broker.security.tls_identity import UNREADABLE

_BEGIN: Final = re.compile(rb"^-----BEGIN [A-Z0-9 ]+-----\s*$", re.MULTILINE)
_END: Final = re.compile(rb"^-----END [A-Z0-9 ]+-----\s*$", re.MULTILINE)
_CRL: Final = re.compile(
    rb"^-----BEGIN X509 CRL-----\s*$[A-Za-z0-9+/=\s]*^-----END X509 CRL-----", re.MULTILINE
)


def judged(files: TlsFiles, contents: Contents) -> tuple[End, ...]:
    """Return when what is in a set ends; raises `TlsRefused` unless it is whole and fits together (INV-TLF1)."""
    if bool(files.certificate) != bool(files.key):
        raise TlsRefused(
            "only one of certificate and key is given: a certificate needs its key beside it"
        )
    try:
        return tuple(_ends(files, contents))
    except UNREADABLE as error:  # much of a certificate is read only when it is asked for; keys never come here (INV-TLF2)
        named = ", ".join(path for path in (files.certificate, files.ca, files.crl) if path)
        raise TlsRefused(
            f"one of {named} says what makes no sense ({error}): take another"
        ) from error


def _ends(files: TlsFiles, contents: Contents) -> Iterator[End]:
    if files.certificate:
        chain = _certificates(files.certificate, contents.certificate)
        key = _key(files.key, contents.key)
        if _spki(key.public_key()) != _spki(chain[0].public_key()):
            raise TlsRefused(
                f"the key in {files.key} is not that of the first certificate in {files.certificate}: put the pair in place"
                " that was issued together, the node's own certificate first in its file"
            )
        yield from (_end_of(files.certificate, "certificate", certificate) for certificate in chain)
    authorities = _certificates(files.ca, contents.ca) if files.ca else []
    yield from (_end_of(files.ca, "ca", authority) for authority in authorities)
    if files.crl:
        yield from _crl_ends(files.crl, contents.crl, authorities)


def _whole(path: str, pem: bytes, what: str) -> None:
    """Refuse a file that is cut off within a block."""
    begun, ended = len(_BEGIN.findall(pem)), len(_END.findall(pem))
    if pem.startswith(codecs.BOM_UTF8 + b"-----BEGIN"):
        raise TlsRefused(
            f"{path} begins with a byte order mark, which hides its first block from OpenSSL: write it anew without (UTF-8, no BOM)"
        )
    if not begun:
        raise TlsRefused(f"{path} holds no PEM block: it must hold {what} (-----BEGIN ...)")
    if begun != ended:
        raise TlsRefused(
            f"{path} is cut off: {begun} blocks begin and {ended} end. Write it beside, whole, and rename it to its place"
        )


def _certificates(path: str, pem: bytes) -> list[x509.Certificate]:
    _whole(path, pem, "certificates")
    try:
        return x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise TlsRefused(
            f"{path} holds no certificates that can be read ({error}): it must be PEM (-----BEGIN CERTIFICATE-----)"
        ) from error


def _key(path: str, pem: bytes) -> PrivateKeyTypes:
    _whole(path, pem, "a private key")
    try:
        return load_pem_private_key(pem, password=None)
    except TypeError:
        raise TlsRefused(
            f"the key in {path} is encrypted, and nobody is there to type its password: decrypt it (openssl pkey), and let the"
            " mode of the file (0600) protect it"
        ) from None
    except UNREADABLE:  # what the library says of it might show some of it (INV-TLF2)
        raise TlsRefused(f"{path} holds no private key that can be read: it must be PEM") from None


def _crl_ends(path: str, pem: bytes, authorities: list[x509.Certificate]) -> list[End]:
    _whole(path, pem, "a CRL")
    if not authorities:
        raise TlsRefused(f"{path} is a CRL without CA: name the CA that signed it, too")
    ends = []
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _CRL.findall(pem)]
        for crl in lists:
            _check_signer(path, crl, authorities)
            if crl.next_update_utc is not None:
                subject = crl.issuer.rfc4514_string()
                began = _ms(crl.last_update_utc)
                ends.append(End("crl", path, subject, _ms(crl.next_update_utc), began))
    except UNREADABLE as error:
        raise TlsRefused(f"{path} holds a CRL that cannot be read ({error})") from error
    if len(lists) != len(_BEGIN.findall(pem)):
        raise TlsRefused(f"{path} holds something else beside CRLs (-----BEGIN X509 CRL-----)")
    return ends


def has_list(certificate: bytes, crl: bytes) -> bool:
    """Return whether one of these CRLs is of the CA that has issued the first of these certificates; both have been `judged`."""
    issuer = x509.load_pem_x509_certificates(certificate)[0].issuer
    return any(x509.load_pem_x509_crl(block).issuer == issuer for block in _CRL.findall(crl))


def crl_numbers(contents: Contents) -> Mapping[CrlSource, int]:
    """Return the number of the newest CRL of each CA's key (RFC 5280 5.2.3), of files that were `judged`; one that tells none is left out."""
    crl, found = contents.crl, dict[CrlSource, int]()
    authorities = x509.load_pem_x509_certificates(contents.ca) if crl else []
    for block in _CRL.findall(crl):
        each = x509.load_pem_x509_crl(block)
        try:
            number = each.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            source = CrlSource(each.issuer.rfc4514_string(), _key_id(each, authorities))
        except (x509.ExtensionNotFound, *UNREADABLE):
            continue
        found[source] = max(number, found.get(source, number))
    return found


def _key_id(crl: x509.CertificateRevocationList, authorities: Sequence[x509.Certificate]) -> bytes:
    """Return which key of its CA has signed a CRL: what it says of that itself counts where the CA is not in the set, and `openssl ca` has it say nothing."""
    for authority in authorities:
        key = authority.public_key()
        if authority.subject == crl.issuer and crl.is_signature_valid(key):  # type: ignore[arg-type]  # as in `_check_signer`
            return sha256(_spki(key)).digest()
    try:
        said = crl.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return b""
    return said.key_identifier or b""


def _check_signer(
    path: str, crl: x509.CertificateRevocationList, authorities: list[x509.Certificate]
) -> None:
    """A CRL of an intermediate CA that is not in the set is judged by whoever sees the chain."""
    named = [authority for authority in authorities if authority.subject == crl.issuer]
    keys = [authority.public_key() for authority in named]
    if named and not any(crl.is_signature_valid(key) for key in keys):  # type: ignore[arg-type]  # of a CA: one that signs
        raise TlsRefused(
            f"{path} names {crl.issuer.rfc4514_string()!r} as its CA, which has not signed it: take the CRL of this CA"
        )


def _spki(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _end_of(path: str, kind: EndKind, certificate: x509.Certificate) -> End:
    subject = certificate.subject.rfc4514_string()
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    return End(kind, path, subject, _ms(ends), _ms(begins))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
