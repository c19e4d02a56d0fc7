"""`tidemark cert`: a private CA, and certificates of nodes and users, for who has none.

Keys and certificates are files; nothing here talks to a node. A node takes changed files up by itself.
Not here: what is signed and why not (`security.certificates`), what files of TLS a node has (`docs/reference/security.md`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from region_broker.cli.cert_files import (
    check_free,
    check_no_key_in,
    config_of,
    file_name,
    files_named_in,
    key_beside,
    loaded,
    node_and_hosts,
    now,
    print_made,
    read_chain,
    refusals,
    row_of,
    rows_of_file,
    said_of,
    serials_of,
)
from region_broker.cli.changed_files import replace_file
from region_broker.cli.output import (
    EXIT_USAGE,
    fail,
    output_option,
    print_object,
    print_rows,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from region_broker.security.authority_folder import AuthorityFolder

Command = TypeVar("Command", bound=Callable[..., Any])
REASONS: Final = (
    "unspecified", "keyCompromise", "affiliationChanged", "superseded", "cessationOfOperation",
)  # fmt: skip


def _ca_option(command: Command) -> Command:
    return click.option(
        "--ca", "ca", type=click.Path(path_type=Path, file_okay=False), default="tidemark-ca", show_default=True,
        help="The folder of the CA. It belongs on a machine that runs no node.",
    )(command)  # fmt: skip


def _dry_run_option(command: Command) -> Command:
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(
        command
    )


@click.group(
    epilog="""\b
Examples:
  tidemark cert init --name "Example Tidemark"
  tidemark cert issue --config eu1.toml
  tidemark cert show *.pem
"""
)
def cert() -> None:
    """Certificates: a private CA, and those of nodes and users."""


@cert.command(
    epilog="""\b
Examples:
  tidemark cert init --name "Example Tidemark"
  tidemark cert init --ca /media/stick/ca --days 1825 --dry-run
"""
)
@_ca_option
@click.option("--name", default="Tidemark CA", show_default=True, help="What it is called.")
@click.option("--days", type=int, default=3650, show_default=True, help="For how long it is good.")
@_dry_run_option
@output_option
def init(ca: Path, name: str, days: int, dry_run: bool, output: str) -> None:
    """Make a private CA: its key, its certificate, and an empty list of what is revoked.

    An existing one is never replaced. Whoever has its key can be any node and any user: keep a copy of the folder
    where only its owner gets to it.
    """
    from region_broker.security import authority_folder, certificates

    with refusals():
        if dry_run:
            authority_folder.check_no_authority(ca)
            made = certificates.new_authority(name, now(), days).certificate
        else:
            made = authority_folder.AuthorityFolder.create(
                ca, name, now(), days
            ).authority.certificate
    files = {
        "certificate": str(ca / "ca.pem"),
        "key": str(ca / "ca-key.pem"),
        "crl": str(ca / "crl.pem"),
    }
    print_made(made, files, dry_run=dry_run, output=output)


@cert.command(
    epilog="""\b
Examples:
  tidemark cert issue --config eu1.toml                       for that node: its addresses are in the file
  tidemark cert issue --config eu1.toml --host eu1.internal   which has one more name
  tidemark cert issue --user alice --out ./alice --days 90
"""
)
@_ca_option
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path, dir_okay=False),
    help="A node's configuration: the certificate is for that node, its region and its addresses.",
)  # fmt: skip
@click.option("--user", "user_name", help="A user's name: the certificate is for a client.")
@click.option(
    "--host", "hosts", multiple=True, help="One more name or address of the node; may be repeated."
)
@click.option(
    "--out", "out", type=click.Path(path_type=Path, file_okay=False), default=".", show_default="this folder",
    help="Where certificate and key are written to.",
)  # fmt: skip
@click.option("--days", type=int, default=365, show_default=True, help="For how long it is good.")
@_dry_run_option
@output_option
def issue(
    ca: Path, config_path: Path | None, user_name: str | None, hosts: Sequence[str], out: Path, days: int,
    dry_run: bool, output: str,
) -> None:  # fmt: skip
    """Issue a certificate with a new key to a node (--config) or to a user (--user).

    Files that are there are never replaced: `tidemark cert renew` is for that.
    """
    from region_broker.security import authority_folder, certificates

    if (config_path is None) == (user_name is None):
        fail("name either a node by --config or a user by --user", EXIT_USAGE)
    if user_name is not None and hosts:
        fail("--host is for nodes: a user has no address", EXIT_USAGE)
    key = certificates.new_key()
    with refusals():
        folder = authority_folder.AuthorityFolder.load(ca)
        if config_path is not None:
            node, known = node_and_hosts(config_of(config_path))
            name = f"{node.region}-{node.node_id}"
            made = certificates.issue_node(
                folder.authority, node, [*known, *hosts], key.public_key(), now=now(), days=days
            )
        else:
            assert user_name is not None
            name = file_name(user_name)
            made = certificates.issue_client(
                folder.authority, user_name, key.public_key(), now=now(), days=days
            )
        files = {"certificate": str(out / f"{name}.pem"), "key": str(out / f"{name}-key.pem")}
        check_free(files.values())
        if not dry_run:
            out.mkdir(parents=True, exist_ok=True)
            with folder.locked():
                folder.remember(made)
            authority_folder.write(
                Path(files["key"]), certificates.key_pem(key), authority_folder.SECRET_MODE
            )
            authority_folder.write(Path(files["certificate"]), certificates.pem_of(made))
    files |= {"ca": str(folder.certificate_path), "crl": str(folder.crl_path)}
    print_made(made, files, dry_run=dry_run, output=output)
    if user_name is not None:
        click.echo(f"ACLs and quotas name who shows it {_principal_of(made)}, where tls_principal_mapping_rules of a node say nothing else", err=True)  # fmt: skip


def _principal_of(made: "x509.Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    from region_broker.security.principal_rules import PrincipalRules
    from region_broker.security.tls_identity import principal_of

    return principal_of(made.public_bytes(Encoding.DER), PrincipalRules())


@cert.command(
    epilog="""\b
Examples:
  tidemark cert show eu-1.pem
  tidemark cert show --config eu1.toml           what that node shows and trusts
  tidemark cert show --ca tidemark-ca            the CA, and all that it has issued
  tidemark cert show eu-1.pem --ca tidemark-ca   and whether that CA has signed or revoked it
  tidemark cert show *.pem -o json
"""
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--ca", "ca", type=click.Path(path_type=Path, file_okay=False),
    help="The folder of a CA: whether it has signed or revoked them; without files, all that it has issued.",
)  # fmt: skip
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path, dir_okay=False),
    help="A node's configuration: the files of TLS that it names.",
)  # fmt: skip
@output_option
def show(files: Sequence[Path], ca: Path | None, config_path: Path | None, output: str) -> None:
    """Show certificates: for whom, by whom, for how long, and what they serve as."""
    if config_path is not None:
        named = files_named_in(config_of(config_path))
        if not named:
            fail(f"{config_path} names no files of TLS (tls_certificate, tls_ca, tls_crl)")
        files = [*files, *named]
    if not files and ca is None:
        fail("name files, a CA by --ca, or a node by --config", EXIT_USAGE)
    with refusals():
        folder = None if ca is None else loaded(ca)
        rows = [row for path in files for row in rows_of_file(path, folder)]
        if folder is not None and not files:
            found = {folder.certificate_path: folder.authority.certificate, **folder.issued()}
            rows = [row_of(path, certificate, folder) for path, certificate in found.items()]
    if output == "table" and len(rows) == 1:
        print_object(rows[0], output)
        return
    print_rows(rows, output, title="certificates")


@cert.command(
    epilog="""\b
Examples:
  tidemark cert renew eu-1.pem                 the same key: only this file changes, and no node needs a restart
  tidemark cert renew eu-1.pem --new-key       the key beside it (eu-1-key.pem) is replaced, too
  tidemark cert renew eu-1.pem --ca new-ca --former-ca tidemark-ca/ca.pem
"""
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@_ca_option
@click.option("--days", type=int, show_default="as long as before", help="For how long it is good.")
@click.option(
    "--new-key", is_flag=True, help="Replace the key beside it, too: NAME-key.pem beside NAME.pem."
)
@click.option(
    "--former-ca", type=click.Path(path_type=Path, dir_okay=False),
    help="The certificate of the CA before this one: what it has signed is renewed by this one.",
)  # fmt: skip
@_dry_run_option
@output_option
def renew(
    files: Sequence[Path], ca: Path, days: int | None, new_key: bool, former_ca: Path | None, dry_run: bool,
    output: str,
) -> None:  # fmt: skip
    """Replace certificates by such that last longer, and say the same.

    The key stays, unless --new-key is given, so the CA's machine needs the certificate only; a file that holds a key, too,
    is refused. All are judged before the first one is replaced; files keep their mode, and their owner where root
    replaces them. The former certificate is good until its end: revoke it if it must not be.
    """
    from region_broker.security import certificates

    with refusals():
        folder = loaded(ca)
        former = read_chain(former_ca)[0] if former_ca is not None else None
        crl, made = folder.crl(), []
        former_ones: list[tuple[Path, x509.Certificate]] = []
        for path in files:
            old, *above = read_chain(path)  # above: intermediate ones, of the CA that signed it
            check_no_key_in(path)
            key = certificates.new_key() if new_key else None
            with said_of(path):
                certificates.check_not_revoked(old, crl)
                new = certificates.renewed(
                    folder.authority, old, now=now(), days=days, former_authority=former,
                    public_key=None if key is None else key.public_key(),
                )  # fmt: skip
            made.append((path, [new, *above] if former is None else [new], key))
            former_ones.append((path, old))
        if not dry_run:
            with folder.locked():
                _check_still_good(folder, former_ones)
                for _, chain, _ in made:
                    folder.remember(chain[0])
            for path, chain, key in made:
                _write_renewed(path, chain, key)
        rows = [row_of(path, chain[0], folder) for path, chain, _ in made]
    if dry_run:
        click.echo("nothing was changed; it would be:", err=True)
    print_rows(rows, output)


def _write_renewed(
    path: Path, chain: "Sequence[x509.Certificate]", key: "ec.EllipticCurvePrivateKey | None"
) -> None:
    """Put a renewed certificate, and its new key if it has one, in the place of the former (INV-CCH2)."""
    from region_broker.security import certificates
    from region_broker.security.authority_folder import PUBLIC_MODE, SECRET_MODE

    if key is not None:
        secret = certificates.key_pem(key)
        replace_file(key_beside(path), secret, new_mode=SECRET_MODE, mode_max=SECRET_MODE)
    pem = b"".join(certificates.pem_of(each) for each in chain)
    replace_file(path, pem, new_mode=PUBLIC_MODE, mode_max=PUBLIC_MODE)


def _check_still_good(
    folder: "AuthorityFolder", certificates_by_path: "Sequence[tuple[Path, x509.Certificate]]"
) -> None:
    """Refuse what another command has revoked since it was looked at, now that the folder is ours (INV-AUF4)."""
    from region_broker.security import certificates

    crl = folder.crl()
    for path, certificate in certificates_by_path:
        with said_of(path):
            certificates.check_not_revoked(certificate, crl)


@cert.command(
    epilog="""\b
Examples:
  tidemark cert revoke alice.pem --reason keyCompromise
  tidemark cert revoke --user alice --dry-run            all that were issued to her
  tidemark cert revoke --serial 3f2a...                  as `tidemark cert show` prints it

Then copy crl.pem to every node (tls_crl): it counts within seconds, for new connections.
"""
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@_ca_option
@click.option("--user", "user_name", help="Revoke all that was issued to this user.")
@click.option(
    "--serial", "serials", multiple=True, help="A serial number, hexadecimal; may be repeated."
)
@click.option(
    "--reason", type=click.Choice(REASONS), default="unspecified", show_default=True, help="Why."
)
@_dry_run_option
@output_option
def revoke(
    files: Sequence[Path], ca: Path, user_name: str | None, serials: Sequence[str], reason: Any, dry_run: bool,
    output: str,
) -> None:  # fmt: skip
    """Revoke certificates: the CA signs a new list (crl.pem) that names them.

    What is revoked stays revoked. Connections that stand are not ended by it.
    """
    from region_broker.security import certificates

    if not files and not serials and user_name is None:
        fail("name what is revoked: files, --user or --serial", EXIT_USAGE)
    with refusals():
        folder = loaded(ca)
        with folder.locked():
            before = folder.crl()
            numbers = serials_of(folder, files, user_name, serials)
            crl = certificates.revocation_list(folder.authority, before, numbers, now(), reason)
            if not dry_run:
                folder.replace_crl(crl)
    known = {entry.serial_number for entry in before}
    rows = [
        {
            "serial": f"{number:x}",
            "revoked": "was already" if number in known else "would be" if dry_run else "now",
        }
        for number in numbers
    ]
    print_rows(rows, output)
    click.echo(
        "nothing was changed"
        if dry_run
        else f"copy {folder.crl_path} to every node (tls_crl): it counts there within seconds, for new connections",
        err=True,
    )
