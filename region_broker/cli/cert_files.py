"""What the commands of `tidemark cert` share: files read, refusals told, certificates as rows.

Not here: the commands (`cert`), what is signed and why not (`security.certificates`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from region_broker.cli.output import EXIT_NOT_FOUND, EXIT_USAGE, fail, print_object

if TYPE_CHECKING:
    from cryptography import x509

    from region_broker.config.node_config import NodeConfig
    from region_broker.security.authority_folder import AuthorityFolder
    from region_broker.security.node_names import NodeName


@contextmanager
def refusals() -> Iterator[None]:
    """End the command with a text where something is refused, or a file cannot be used."""
    from region_broker.security.certificates import CertificateRefused

    try:
        yield
    except CertificateRefused as refused:
        fail(str(refused))
    except FileExistsError as error:
        fail(
            f"{error.filename2 or error.filename} is there already, and nothing is replaced unasked"
        )
    except FileNotFoundError as error:
        fail(f"{error.filename} is not there", EXIT_NOT_FOUND)
    except OSError as error:
        fail(f"{error.filename} cannot be used: {error.strerror or error}")


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Name the file that a refusal is about."""
    from region_broker.security.certificates import CertificateRefused

    try:
        yield
    except CertificateRefused as refused:
        raise CertificateRefused(f"{path}: {refused}") from refused


def now() -> datetime:
    """Return the moment of now, in whole seconds."""
    from region_broker.ports.system.clock import SystemClock
    from region_broker.security.certificates import instant

    return instant(SystemClock().wall_ms())


def loaded(ca: Path) -> "AuthorityFolder":
    """Return the CA of a folder."""
    from region_broker.security.authority_folder import AuthorityFolder

    return AuthorityFolder.load(ca)


def check_no_key_in(path: Path) -> None:
    """Refuse a file that holds a private key beside its certificate: what replaces the file would take the only one away."""
    from region_broker.security.certificates import CertificateRefused

    if b"PRIVATE KEY-----" in path.read_bytes():
        raise CertificateRefused(
            f"{path} holds a private key, too, and would be replaced by the certificate alone: copy the certificate to a file of its own,"
            " renew that one, and put it in the place of the one in this file"
        )


def read_chain(path: Path) -> "list[x509.Certificate]":
    """Return the certificates of a file: the own one first."""
    from cryptography import x509

    from region_broker.security.certificates import CertificateRefused
    from region_broker.security.tls_identity import UNREADABLE

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except UNREADABLE as error:
        raise CertificateRefused(
            f"{path} holds no certificate that can be read ({error}): it must be PEM (-----BEGIN CERTIFICATE-----)"
        ) from error


def config_of(path: Path) -> "NodeConfig":
    """Return a node's configuration; a wrong one ends the command."""
    from region_broker.config.node_config import ConfigError, NodeConfig

    try:
        return NodeConfig.load(path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


def node_and_hosts(config: "NodeConfig") -> "tuple[NodeName, list[str]]":
    """Return which node a configuration is of, and at which hosts it is met."""
    from region_broker.config.relations import PORTS
    from region_broker.config.rules import split
    from region_broker.security.node_names import NodeName

    own = config.own_node
    node = NodeName(region=config.region, node_id=own.node_id, cluster_id=config.cluster_id)
    addresses = [getattr(own, port) for port in PORTS]
    addresses += [listener.advertised for listener in config.listeners]
    return node, list(dict.fromkeys(split(address)[0] for address in addresses))


def files_named_in(config: "NodeConfig") -> list[Path]:
    """Return what a node shows and trusts; none of its keys."""
    named = (config.tls_certificate, config.tls_ca, config.tls_crl)
    return [Path(name) for name in named if name]


def file_name(user_name: str) -> str:
    """Return the name of a user's files: the user's, with what no file should be called by replaced."""
    safe = "".join(letter if letter.isalnum() or letter in "._-@" else "_" for letter in user_name)
    return safe.lstrip(".-") or "user"


def key_beside(path: Path) -> Path:
    """Return where the key of a certificate is: NAME-key.pem beside NAME.pem."""
    return path.with_name(f"{path.stem}-key{path.suffix}")


def check_free(paths: Iterable[str]) -> None:
    """End the command where one of these files is there already."""
    for path in paths:
        if Path(path).exists():
            fail(
                f"{path} is there already: renew it (tidemark cert renew), or choose another --out"
            )


def serials_of(
    folder: "AuthorityFolder", files: Sequence[Path], user_name: str | None, serials: Sequence[str]
) -> list[int]:
    """Return what is to be revoked, each once; what this CA has not issued ends the command."""
    from region_broker.security import certificates

    found: list[int] = []
    for path in files:
        certificate = read_chain(path)[0]
        if not certificates.is_signed_by(certificate, folder.authority.certificate):
            fail(f"{path} was not signed by the CA in {folder.path}, which cannot revoke it")
        found.append(certificate.serial_number)
    issued = folder.issued().values()
    known = {each.serial_number for each in issued}
    for text in serials:
        try:
            serial = int(text.replace(":", ""), 16)
        except ValueError:
            fail(
                f"{text!r} is no serial number: it is hexadecimal, as tidemark cert show prints it",
                EXIT_USAGE,
            )
        if serial not in known:
            fail(
                f"{folder.issued_path} holds nothing of serial number {text}: name the file of the certificate instead",
                EXIT_NOT_FOUND,
            )
        found.append(serial)
    if user_name is not None:
        of_user = [each.serial_number for each in issued if certificates.user_in(each) == user_name]
        if not of_user:
            fail(
                f"nothing was issued to user {user_name!r} by the CA in {folder.path}",
                EXIT_NOT_FOUND,
            )
        found += of_user
    return list(dict.fromkeys(found))


def row_of(
    path: Path, certificate: "x509.Certificate", folder: "AuthorityFolder | None"
) -> dict[str, Any]:
    """Return what `show` says of a certificate."""
    from region_broker.security.certificates import described, is_signed_by

    said = described(certificate)
    row: dict[str, Any] = {
        "file": str(path),
        "serves_as": said.serves_as,
        "subject": said.subject,
        "names": list(said.names),
        "signed_by": said.signed_by,
        "days_left": (said.ends - now()).days,
        "ends": f"{said.ends:%Y-%m-%dT%H:%M:%SZ}",
        "serial": said.serial,
    }
    if folder is not None:
        revoked = folder.crl().get_revoked_certificate_by_serial_number(certificate.serial_number)
        signed = is_signed_by(certificate, folder.authority.certificate)
        row["by_this_ca"] = "no" if not signed else "yes" if revoked is None else "yes, REVOKED"
    return row


def rows_of_file(path: Path, folder: "AuthorityFolder | None") -> list[dict[str, Any]]:
    """Return what `show` says of a file: its certificates, or its CRL; a key is never shown."""
    from cryptography import x509

    from region_broker.security.certificates import CertificateRefused
    from region_broker.security.tls_identity import UNREADABLE

    data = path.read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in data and b"PRIVATE KEY-----" in data:
        click.echo(f"{path} holds a key: not shown", err=True)
        return []
    if b"-----BEGIN X509 CRL-----" not in data:
        return [row_of(path, certificate, folder) for certificate in read_chain(path)]
    try:
        crl = x509.load_pem_x509_crl(data)
    except UNREADABLE as error:
        raise CertificateRefused(f"{path} holds a CRL that cannot be read ({error})") from error
    ends = crl.next_update_utc
    row: dict[str, Any] = {
        "file": str(path),
        "serves_as": f"CRL: {len(crl)} revoked",
        "subject": None,
        "names": [],
        "signed_by": crl.issuer.rfc4514_string(),
        "days_left": None if ends is None else (ends - now()).days,
        "ends": None if ends is None else f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        "serial": None,
    }
    if folder is not None:
        is_own = crl.is_signature_valid(folder.authority.key.public_key())
        row["by_this_ca"] = "yes" if is_own else "no"
    return [row]


def print_made(
    made: "x509.Certificate", files: dict[str, str], *, dry_run: bool, output: str
) -> None:
    """Print what was made, or would be."""
    from region_broker.security.certificates import described

    said = described(made)
    if dry_run:
        click.echo("nothing was written; it would be:", err=True)
    print_object(
        {
            **files,
            "serves_as": said.serves_as,
            "subject": said.subject,
            "names": list(said.names),
            "ends": f"{said.ends:%Y-%m-%dT%H:%M:%SZ}",
        },
        output,
    )
