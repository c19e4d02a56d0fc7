"""`tidemark user`: who can log in on the Kafka port by SCRAM and PLAIN.

INV-USR1  a password comes from a prompt, a file or TIDEMARK_NEW_PASSWORD, never from an argument, which others on the machine can read;
          what is sent to a node are salted keys, made here
Not here: what users may do (`tidemark acl`), how commands log in themselves.
"""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from region_broker.cli.admin.node_requests import asked
from region_broker.cli.kafka import (
    TIMEOUT_S,
    admin_client,
    bootstrap_option,
    kafka_errors,
    wait_for,
)
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_object,
    print_rows,
)
from region_broker.security.sasl.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN
from region_broker.security.sasl.scram_keys import (
    PASSWORD_BYTES_MAX,
    SALT_BYTES,
    keys_of,
    line_of,
    password_problem,
    user_problem,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PASSWORD_VARIABLE: Final = "TIDEMARK_NEW_PASSWORD"  # noqa: S105 -- the name of it
_MECHANISMS: Final = tuple(HASHES)
Present = Mapping[str, Mapping[str, int]]
"""Iterations by user and mechanism."""


def _mechanism_option(command: Any) -> Any:
    return click.option(
        "--new-mechanism", "mechanisms", multiple=True, type=click.Choice(_MECHANISMS), default=_MECHANISMS,
        show_default=True, help="May be repeated.",
    )(command)  # fmt: skip


def _iterations_option(command: Any) -> Any:
    return click.option(
        "--iterations", default=ITERATIONS_MIN, show_default=True,
        type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
        help="How much work each guess at the password is; clients do it at each login, too.",
    )(command)  # fmt: skip


def _password_option(command: Any) -> Any:
    return click.option(
        "--new-password-file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        help=f"Take the password from a file, - for standard input. Default: {PASSWORD_VARIABLE}, then a prompt.",
    )(command)  # fmt: skip


_dry_run_option = click.option("--dry-run", is_flag=True, help="Check only, change nothing.")


@click.group(epilog="Example: tidemark user create alice --new-password-file alice.txt")
def user() -> None:
    """Create, list and delete users; set passwords. They hold in all regions, as topics do."""


@user.command(
    "create",
    epilog="""\b
Examples:
  tidemark user create alice                                asks for the password
  tidemark user create alice --new-password-file alice.txt --new-mechanism SCRAM-SHA-512
""",
)
@click.argument("name")
@_mechanism_option
@_iterations_option
@_password_option
@_dry_run_option
@bootstrap_option
@output_option
def user_create(
    name: str, mechanisms: Sequence[str], iterations: int, new_password_file: Path | None, dry_run: bool,
    bootstrap: str, output: str,
) -> None:  # fmt: skip
    """Create the user NAME."""
    _check_name(name)
    client = admin_client(bootstrap)
    if name in _present(bootstrap):
        fail(f"user {name} is there already: tidemark user set-password {name} gives another password")  # fmt: skip
    _put(client, name, mechanisms, iterations, new_password_file, dry_run=dry_run)
    _tell(name, "created", mechanisms, output, dry_run=dry_run)


@user.command("set-password", epilog="Example: tidemark user set-password alice")
@click.argument("name")
@_iterations_option
@_password_option
@_dry_run_option
@bootstrap_option
@output_option
def user_set_password(
    name: str, iterations: int, new_password_file: Path | None, dry_run: bool, bootstrap: str, output: str
) -> None:  # fmt: skip
    """Give the user NAME another password, for all mechanisms that it has. Who is logged in stays so."""
    client = admin_client(bootstrap)
    mechanisms = tuple(_present(bootstrap).get(name, ()))
    if not mechanisms:
        _fail_unknown(name)
    _put(client, name, mechanisms, iterations, new_password_file, dry_run=dry_run)
    _tell(name, "given another password", mechanisms, output, dry_run=dry_run)


@user.command("delete", epilog="Example: tidemark user delete alice --dry-run")
@click.argument("name")
@_dry_run_option
@bootstrap_option
@output_option
def user_delete(name: str, dry_run: bool, bootstrap: str, output: str) -> None:
    """Delete the user NAME. Who is logged in stays so until the connection ends, or its session."""
    from confluent_kafka.admin._scram import ScramMechanism, UserScramCredentialDeletion

    client = admin_client(bootstrap)
    mechanisms = tuple(_present(bootstrap).get(name, ()))
    if not mechanisms:
        _fail_unknown(name)
    if not dry_run:
        what = f"user {name} was not deleted"
        rows: list[Any] = [
            UserScramCredentialDeletion(name, ScramMechanism[_enum_name(each)])
            for each in mechanisms
        ]
        with kafka_errors(what):
            answers = client.alter_user_scram_credentials(rows, request_timeout=TIMEOUT_S)
        wait_for(answers[name], what)
    _tell(name, "deleted", mechanisms, output, dry_run=dry_run)
    click.echo(
        f"what is said of User:{name} elsewhere stays (tidemark acl list, tidemark quota list), and counts for who is called so later;"
        " who is logged in stays so until the connection ends, or its session (sasl_max_reauth_ms)",
        err=True,
    )


@user.command("list", epilog="Example: tidemark user list -o json")
@bootstrap_option
@output_option
def user_list(bootstrap: str, output: str) -> None:
    """List who can log in. Users of a node's own file (`sasl_users_file`) are known to that node alone."""
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, kinds in sorted(_present(bootstrap).items())
        for mechanism, iterations in sorted(kinds.items())
    ]
    print_rows(rows, output, title="users")
    if not rows and output != "json":
        click.echo("nobody is in the metadata: who logs in stands in a node's own file (sasl_users_file), which no node tells", err=True)  # fmt: skip


@user.command(
    "keys",
    epilog="""\b
Examples:
  tidemark user keys admin >> users.txt      lines for sasl_users_file
  tidemark user keys admin --new-password-file admin.txt --new-mechanism SCRAM-SHA-512
""",
)
@click.argument("name")
@_mechanism_option
@_iterations_option
@_password_option
def user_keys(
    name: str, mechanisms: Sequence[str], iterations: int, new_password_file: Path | None
) -> None:
    """Print the salted keys of a user, as a node's `sasl_users_file` holds them; no node is asked."""
    _check_name(name)
    password = _password(new_password_file)
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        click.echo(line_of(keys_of(name, mechanism, password.encode(), salt, iterations)))


def _check_name(name: str) -> None:
    wrong = user_problem(name)
    if wrong is None and any(letter.isspace() for letter in name):
        wrong = "a user name of this command has no spaces"
    if wrong is not None:
        fail(wrong, EXIT_USAGE)


def _password(path: Path | None) -> str:
    """Return the new password (INV-USR1)."""
    if path is not None:
        try:
            with click.open_file(str(path), encoding="utf-8") as file:
                password = str(file.read(2 * PASSWORD_BYTES_MAX)).removesuffix("\n")
        except (OSError, ValueError) as error:
            fail(f"no password can be read from {path}: {error}", EXIT_USAGE)
    else:
        password = os.environ.get(PASSWORD_VARIABLE) or _typed()
    wrong = password_problem(password)
    if wrong is not None:
        fail(wrong, EXIT_USAGE)
    return password


def _typed() -> str:
    try:
        typed: str = click.prompt(
            "New password", hide_input=True, confirmation_prompt=True, err=True
        )
    except click.Abort:
        if sys.stdin.isatty():
            raise
        fail(
            f"there is no new password, and nobody here to ask: --new-password-file FILE (-: standard input), or {PASSWORD_VARIABLE}",
            EXIT_USAGE,
        )
    return typed


def _present(bootstrap: str) -> Present:
    """Return who can log in, and how."""
    from region_broker.handlers.sasl.scram_mechanisms import NAMES

    with asked(bootstrap, "users cannot be listed") as node:
        found = node.users()
    return {
        name: {NAMES[number]: iterations for number, iterations in kinds.items()}
        for name, kinds in found.items()
    }


def _put(
    client: "AdminClient", name: str, mechanisms: Sequence[str], iterations: int,
    new_password_file: Path | None, *, dry_run: bool,
) -> None:  # fmt: skip
    """Give a user a password; librdkafka salts it here, and sends the salted one."""
    from confluent_kafka.admin._scram import (
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    password = _password(new_password_file).encode()
    if dry_run:
        return
    what = f"the password of user {name} was not set"
    rows: list[Any] = [
        UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism[_enum_name(each)], iterations), password,
            secrets.token_bytes(SALT_BYTES),
        )
        for each in mechanisms
    ]  # fmt: skip
    with kafka_errors(what):
        answers = client.alter_user_scram_credentials(rows, request_timeout=TIMEOUT_S)
    wait_for(answers[name], what)


def _enum_name(mechanism: str) -> str:
    return mechanism.replace("-", "_")


def _tell(name: str, done: str, mechanisms: Sequence[str], output: str, *, dry_run: bool) -> None:
    if output == "json":
        told = {"user": name, "mechanisms": list(mechanisms), "done": not dry_run}
        print_object(told, output)
        return
    click.echo(f"user {name} {'could be' if dry_run else 'was'} {done} ({', '.join(mechanisms)})")


def _fail_unknown(name: str) -> NoReturn:
    fail(
        f"there is no user {name} in the metadata: tidemark user list shows all. One of a node's file (sasl_users_file) gets another"
        " password by tidemark user create, which beats the file",
        EXIT_NOT_FOUND,
    )
