"""`tidemark token`: make, list and take back tokens for the HTTP port of nodes.

INV-CTK1  a token is printed once, by `create`, on standard output alone; nothing else ever shows it, and the file cannot
INV-CTK2  the file is replaced as a whole or not at all, and nobody but its owner may read it; nodes read it again by themselves
Not here: what the file holds (`security.http_tokens`), what a role may do (`http_api.needs`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from region_broker.cli.changed_files import locked, replace_file
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_object,
    print_rows,
)
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.security.http_tokens import (
    FILE_BYTES_MAX,
    TOKEN_COUNT_MAX,
    Role,
    TokenRow,
    TokensUnusable,
    file_of,
    made_token,
    rows_of,
)

_DAY_MS: Final = 24 * 3600 * 1000

file_option = click.option(
    "--file", "path", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="The file of tokens: `http_tokens_file` of the nodes.",
)  # fmt: skip


@click.group(
    epilog="Example: tidemark token create grafana --role metrics --file /etc/tidemark/tokens.json"
)
def token() -> None:
    """Tokens for the HTTP port: who may read metrics, see, or order."""


@token.command(
    epilog="""\b
Examples:
  tidemark token create grafana --role metrics --file tokens.json
  tidemark token create ci --role operator --days 30 --file tokens.json > ci.token
"""
)
@click.argument("name")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]),
              help="metrics: /metrics and /readyz; reader: everything that shows; operator: orders, too; admin: also what gives records up,"
              " and who belongs to a region.")  # fmt: skip
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    help="How long it counts. Default: until it is taken back.",
)
@file_option
@output_option
def create(name: str, role: str, days: int | None, path: Path, output: str) -> None:
    """Make a token NAME and print it, once: it is kept nowhere."""
    now_ms = SystemClock().wall_ms()
    ends_ms = now_ms + days * _DAY_MS if days else 0
    with _changing(path) as rows:
        if any(row.name == name for row in rows):
            fail(
                f"there is a token {name} in {path}: take it back first (tidemark token revoke {name})",
                EXIT_USAGE,
            )
        if len(rows) >= TOKEN_COUNT_MAX:
            fail(f"{path} has {TOKEN_COUNT_MAX} tokens, which are the most: take some back first")
        try:
            text, row = made_token(name, Role(role), SystemChance(), now_ms, ends_ms)
        except TokensUnusable as error:
            fail(str(error), EXIT_USAGE)
        rows.append(row)
    if output == "json":
        print_object(
            {"name": name, "role": role, "token": text, "expires_wall_ms": ends_ms}, output
        )
    else:
        click.echo(text)


@token.command("list", epilog="Example: tidemark token list --file tokens.json -o json")
@file_option
@output_option
def list_tokens(path: Path, output: str) -> None:
    """List the tokens of a file: names, roles, ends."""
    now_ms = SystemClock().wall_ms()
    rows: list[dict[str, Any]] = [
        {"name": row.name, "role": row.role.value, "id": row.id, "created_wall_ms": row.created_wall_ms,
         "expires_wall_ms": row.expires_wall_ms, "ended": 0 < row.expires_wall_ms <= now_ms}
        for row in _read(path)
    ]  # fmt: skip
    print_rows(rows if output == "json" else list(map(_in_words, rows)), output, title="tokens")


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table: when, for people."""
    ends_ms = row["expires_wall_ms"]
    ends = f"ended {_at(ends_ms)}" if row["ended"] else _at(ends_ms) if ends_ms else "never"
    return {"name": row["name"], "role": row["role"], "id": row["id"],
            "created": _at(row["created_wall_ms"]), "ends": ends}  # fmt: skip


def _at(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


@token.command(epilog="Example: tidemark token revoke ci --file tokens.json")
@click.argument("name")
@file_option
def revoke(name: str, path: Path) -> None:
    """Take the token NAME back: nodes refuse it from the next request on."""
    with _changing(path) as rows:
        kept = [row for row in rows if row.name != name]
        if len(kept) == len(rows):
            names = ", ".join(row.name for row in rows) or "none"
            fail(f"there is no token {name} in {path}; there are: {names}", EXIT_NOT_FOUND)
        rows[:] = kept
    click.echo(f"token {name} was taken back")


def _read(path: Path) -> list[TokenRow]:
    try:
        with path.open("rb") as file:
            return rows_of(file.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        fail(f"{path} is not there: tidemark token create makes it", EXIT_NOT_FOUND)
    except TokensUnusable as error:
        fail(f"{path} cannot be used: {error}")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror or error}")


@contextmanager
def _changing(path: Path) -> Iterator[list[TokenRow]]:
    """Give out the rows of a file, and replace it by what they have become (INV-CTK2); one command at a time."""
    try:
        if not path.parent.is_dir():  # a slip of the pen must not make a token that no node knows
            fail(
                f"the folder {path.parent} is not there: make it, or name the nodes' file",
                EXIT_NOT_FOUND,
            )
        with locked(path):
            rows = _read(path) if path.exists() else []
            yield rows
            replace_file(path, file_of(rows), new_mode=0o600, mode_max=0o640)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")
