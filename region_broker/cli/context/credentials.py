"""How a command says who it is: options, environment and context, and files for what is secret.

INV-CCR1  no secret is an option: what stands on a command line, everybody on the machine may read. A password and a token come from a
          file or the environment, and contexts keep the files' paths alone
INV-CCR2  an option beats the environment, which beats the context (INV-CTX1), each by itself; but a password of another
          user's is never sent: who names a user names the password beside it
INV-CCR3  a file that others may read is told, and used
Not here: what follows from it (`security.login`), where contexts are kept (`context.store`).
"""

import os
import stat
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from region_broker.cli.context.store import Context, ContextError, chosen
from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.security.login import (
    DEFAULT_MECHANISM,
    MECHANISMS,
    PROTOCOLS,
    LoginRefused,
    Security,
)
from region_broker.workbench.credentials import present_as

SECRET_BYTES_MAX: Final = 4096
PASSWORD_VARIABLE: Final = "TIDEMARK_PASSWORD"  # noqa: S105 -- its name
TOKEN_VARIABLE: Final = "TIDEMARK_HTTP_TOKEN"  # noqa: S105 -- its name
OPTIONS: Final[Mapping[str, str]] = {
    "ca": "PEM file with the certificates that servers are checked against.",
    "certificate": "PEM file with this client's certificate.",
    "key": "PEM file with its key.",
    "protocol": f"Kafka's security.protocol, one of {', '.join(PROTOCOLS)}. Default: what follows from the rest.",
    "mechanism": f"How to log in: {', '.join(MECHANISMS)}. Default: {DEFAULT_MECHANISM}.",
    "user": "Who logs in.",
    "password_file": "File with the password.",
    "http_token_file": "File with the token for HTTP.",
}
"""Each has a variable, TIDEMARK_ and its name, and a place in a context."""

Command = TypeVar("Command", bound=Callable[..., Any])


def variable_of(name: str) -> str:
    """Return the environment variable of an option."""
    return f"TIDEMARK_{name.upper()}"


def flag_of(name: str) -> str:
    """Return the option's name on a command line."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


_FLAGS: Final = {"key": "--certificate-key"}
"""`--key` is what some commands are about."""


def credential_options(command: Command) -> Command:
    """Add the options, once; before the command runs, its process presents itself so."""
    if getattr(command, "presents_itself", False):
        return command

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(f"login_{name}") for name in OPTIONS}
        present_as(security_of(given))
        return command(*args, **kwargs)

    for name, text in reversed(list(OPTIONS.items())):
        click.option(
            flag_of(name),
            f"login_{name}",
            metavar=_metavar(name),
            help=text,
            hidden=name not in _SHOWN,
        )(run)
    run.presents_itself = True  # type: ignore[attr-defined]  # click keeps its options there, too
    return run  # type: ignore[return-value]


_SHOWN: Final = frozenset({"ca", "user", "password_file", "http_token_file"})
"""The help of each command has these; docs/reference/cli.md has all."""


def _metavar(name: str) -> str:
    return {"user": "NAME", "mechanism": "NAME", "protocol": "NAME"}.get(name, "FILE")


def security_of(
    given: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> Security:
    """Return who asks (INV-CCR2); ends the command where that cannot be."""
    try:
        return _checked(_security_of(given, environment, chosen(environment)))
    except (ContextError, LoginRefused) as error:
        fail(str(error), EXIT_USAGE)


def _checked(security: Security) -> Security:
    """Return it; files that cannot be used are told here, by name. Raises `LoginRefused`."""
    if security.ca or security.certificate:
        security.ssl_context()
    return security


def present_if_possible(environment: Mapping[str, str] = os.environ) -> None:
    """Ask as environment and context say; where that cannot be, say so, and ask as nobody."""
    try:
        present_as(_checked(_security_of({}, environment, chosen(environment))))
    except (ContextError, LoginRefused) as error:
        click.echo(f"other nodes are asked without saying who asks: {error}", err=True)


def _security_of(
    given: Mapping[str, str | None], environment: Mapping[str, str], context: Context
) -> Security:
    def said(name: str) -> str:
        return given.get(name) or environment.get(variable_of(name)) or str(getattr(context, name))

    user = said("user")
    return Security(
        ca=said("ca"),
        certificate=said("certificate"),
        key=said("key"),
        mechanism=said("mechanism") or DEFAULT_MECHANISM,
        user=user,
        password=_password(given, environment, context) if user else "",
        http_token=_token(given, environment, context),
        protocol=said("protocol"),  # type: ignore[arg-type]  # judged there
    )


def _password(
    given: Mapping[str, str | None], environment: Mapping[str, str], context: Context
) -> str:
    """Return the password of the user who is named: never one that stands beside another user's name (INV-CCR2)."""
    option, variable = given.get("user"), environment.get(variable_of("user"))
    user = option or variable or context.user
    if path := given.get("password_file"):
        return secret_in(path, "password")
    if variable in {None, "", user}:
        if password := environment.get(PASSWORD_VARIABLE):
            return password
        if path := environment.get(variable_of("password_file")):
            return secret_in(path, "password")
    if context.user == user and context.password_file:
        return secret_in(context.password_file, "password")
    raise LoginRefused(
        f"there is no password for user {user!r}: give --password-file, or {PASSWORD_VARIABLE}, or {variable_of('password_file')}"
    )


def _token(
    given: Mapping[str, str | None], environment: Mapping[str, str], context: Context
) -> str:
    if path := given.get("http_token_file"):
        return secret_in(path, "token")
    if token := environment.get(TOKEN_VARIABLE):
        return token
    path = environment.get(variable_of("http_token_file")) or context.http_token_file
    return secret_in(path, "token") if path else ""


def secret_in(path: str, what: str) -> str:
    """Return the one line of a file; raises `LoginRefused`."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise LoginRefused(
            f"the {what} file {path} cannot be read: {error.strerror or error}"
        ) from error
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"others may read the {what} in {path}: chmod 600 {path}", err=True)  # INV-CCR3
    try:
        # Editors of some systems begin a file with a mark that nobody sees, and that is part of no secret.
        line = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LoginRefused(f"the {what} file {path} holds no text") from error
    if not line or "\n" in line or len(data) > SECRET_BYTES_MAX:
        raise LoginRefused(f"the {what} file {path} does not hold one line")
    return line
