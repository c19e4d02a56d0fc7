"""`tidemark context`: name clusters, and say which one commands mean.

Not here: where contexts are kept, and what beats what (`store`).
"""

import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from region_broker.cli.context.credentials import (
    OPTIONS,
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    flag_of,
    variable_of,
)
from region_broker.cli.context.store import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_URL,
    Context,
    ContextError,
    Contexts,
    chosen,
)
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_object,
    print_rows,
)
from region_broker.security.login import MECHANISMS, PROTOCOLS
from region_broker.workbench.node_http import BadUrl, urls_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLES: Final = {
    "bootstrap": "TIDEMARK_BOOTSTRAP", "url": "TIDEMARK_URL", **{name: variable_of(name) for name in OPTIONS}
}  # fmt: skip


@click.group(epilog="Example: tidemark context set live --bootstrap k1:9092 --url http://k1:9093")
def context() -> None:
    """Name clusters once, and let all commands mean one of them."""


def _tells(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except ContextError as error:
            fail(str(error), EXIT_NOT_FOUND if "there is no context" in str(error) else EXIT_USAGE)

    return run


def _credentials(command: Callable[..., None]) -> Callable[..., None]:
    for name, text in reversed(list(OPTIONS.items())):
        command = click.option(
            *dict.fromkeys((f"--{name.replace('_', '-')}", flag_of(name))), name, help=text
        )(command)
    return command


def _told(key: str, value: str) -> str:
    """Return what is kept of an option: files by their whole paths, as commands run anywhere."""
    is_file = key in {"ca", "certificate", "key"} or key.endswith("_file")
    return str(Path(value).resolve()) if is_file and value else value


@context.command(
    "set",
    epilog="""\b
Example:
  tidemark context set live --bootstrap eu1:9092,us1:9092 --url http://eu1:9093,http://us1:9093
""",
)
@click.argument("name")
@click.option("--bootstrap", help=f"Kafka addresses, with commas, such as {DEFAULT_BOOTSTRAP}.")
@click.option("--url", help=f"HTTP addresses, with commas, such as {DEFAULT_URL}.")
@_credentials
@_tells
def context_set(
    name: str, bootstrap: str | None, url: str | None, **credentials: str | None
) -> None:
    """Make the context NAME from both addresses, or change what is given; the first one is the current one.

    What is given as "" is taken out. Files are kept as paths: what is in them is read by each command.
    """
    if not _NAME.fullmatch(name):
        fail(
            f"{name!r} is no name: letters, digits, dot, dash and underscore, 64 at most",
            EXIT_USAGE,
        )
    contexts = Contexts.load()
    if name not in contexts.named and not (bootstrap and url):
        fail(
            f"{name} is a new context: give both --bootstrap and --url, so that no order goes to another cluster",
            EXIT_USAGE,
        )
    for address in (bootstrap or "").split(",") if bootstrap else ():
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            fail(f"--bootstrap: {address!r} is not host:port", EXIT_USAGE)
    for what, words in (("protocol", PROTOCOLS), ("mechanism", MECHANISMS)):
        if (word := credentials.get(what)) and word not in words:
            fail(f"--{what}: {word!r} is none of {', '.join(words)}", EXIT_USAGE)
    before = contexts.named.get(name, Context())
    try:
        addresses = ",".join(urls_of(url)) if url else before.url
    except BadUrl as error:
        fail(f"--url: {error}", EXIT_USAGE)
    given = {key: _told(key, value) for key, value in credentials.items() if value is not None}
    changed = contexts.with_context(
        name, replace(before, bootstrap=bootstrap or before.bootstrap, url=addresses, **given)
    )
    changed.save()
    click.echo(
        f"context {name} was set" + (", and is the current one" if changed.current == name else "")
    )


@context.command(
    "show",
    epilog="""\b
Examples:
  tidemark context show live
  tidemark context show -o json         what commands count on without a context named
""",
)
@click.argument("name", required=False)
@output_option
@_tells
def context_show(name: str | None, output: str) -> None:
    """Show the context NAME, or what commands count on now; of secrets only where they come from."""
    if name is not None:
        shown: dict[str, Any] = asdict(Contexts.load().of(name))
    else:
        shown = asdict(chosen())
        for key, variable in _VARIABLES.items():
            shown[key] = os.environ.get(variable) or shown[key]
        for what, variable in (("password", PASSWORD_VARIABLE), ("http_token", TOKEN_VARIABLE)):
            if variable in os.environ:
                shown[what] = f"(in {variable})"
    print_object(shown, output, title=f"context {name or 'that counts'}")


@context.command("use", epilog="Example: tidemark context use live")
@click.argument("name")
@_tells
def context_use(name: str) -> None:
    """Let commands mean the context NAME from now on."""
    Contexts.load().using(name).save()
    click.echo(f"commands mean {name} now")


@context.command("list", epilog="Example: tidemark context list -o json")
@output_option
@_tells
def context_list(output: str) -> None:
    """List the contexts."""
    contexts = Contexts.load()
    rows = [
        {"context": name, "current": name == contexts.current,
         "bootstrap": each.bootstrap, "url": each.url}
        for name, each in sorted(contexts.named.items())
    ]  # fmt: skip
    print_rows(rows, output, title="contexts")


@context.command("delete", epilog="Example: tidemark context delete live")
@click.argument("name")
@_tells
def context_delete(name: str) -> None:
    """Forget the context NAME; no cluster is touched."""
    Contexts.load().without(name).save()
    click.echo(f"context {name} was forgotten")
