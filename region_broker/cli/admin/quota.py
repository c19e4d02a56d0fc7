"""`tidemark quota`: what clients may use, by user, client id and address.

Any node of any region may be asked: a change is carried out in the primary region, and checked there. What is shown is what the region
knows that is asked.
Not here: what a quota means (docs/reference/security.md), how a node is asked (`node_requests`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from region_broker.cli.admin.node_requests import EntityName, NodeError, asked
from region_broker.cli.kafka import bootstrap_option
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_rows,
)

Command = TypeVar("Command", bound=Callable[..., Any])
_TYPES: Final = ("user", "client-id", "ip")
_WORDS: Final = {"user": "user", "client-id": "client id", "ip": "address"}
_DEFAULT: Final = "<default>"
_WRONG_KEY: Final = "Invalid configuration key"
_KEYS: Final = (
    "producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage (of a node's event loop), controller_mutation_rate"
    " (partitions a second); of addresses connection_creation_rate (connections a second)"
)


def _entity_options(command: Command) -> Command:
    """Add the options that name an entity; they arrive as `entity`."""
    for kind in reversed(_TYPES):
        option = click.option(
            f"--for-default-{kind}", f"default_{kind.replace('-', '_')}", is_flag=True,
            help=f"For every {_WORDS[kind]} that has no quota of its own.",
        )  # fmt: skip
        command = option(command)
        named = click.option(
            f"--for-{kind}",
            f"for_{kind.replace('-', '_')}",
            metavar="NAME",
            help=f"The {_WORDS[kind]}.",
        )
        command = named(command)
    return command


def _entity(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the entity that options name; ends the command where they contradict each other."""
    entity: dict[str, str | None] = {}
    for kind in _TYPES:
        field = kind.replace("-", "_")
        name, is_default = options[f"for_{field}"], options[f"default_{field}"]
        if name is not None and is_default:
            fail(
                f"--for-{kind} and --for-default-{kind} are two entities: give one of them",
                EXIT_USAGE,
            )
        if is_default:
            entity[kind] = None
        elif name is not None:
            entity[kind] = name
    if "ip" in entity and len(entity) > 1:
        fail(
            "an address has its quota by itself: name it without a user and a client id", EXIT_USAGE
        )
    return entity


@click.group(epilog="Example: tidemark quota set producer_byte_rate=1048576 --for-user alice")
def quota() -> None:
    """List, set and remove what clients may use, by user, client id and address."""


@quota.command(
    "list",
    epilog="""\b
Examples:
  tidemark quota list
  tidemark quota list --for-user alice -o json
  tidemark quota list --for-default-client-id
""",
)
@_entity_options
@bootstrap_option
@output_option
def quota_list(bootstrap: str, output: str, **options: Any) -> None:
    """Show the quotas of all entities, or of those that the options name, with whatever else they name."""
    entity = _entity(options)
    with asked(bootstrap, "the quotas were not read") as node:
        found = node.quotas(entity, strict=False)
    print_rows(list(_rows(found)), output, title="quotas")


def _rows(found: Mapping[EntityName, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    for entity, limits in found.items():
        named = dict(entity)
        shown = {kind: _name(named[kind]) if kind in named else "" for kind in _TYPES}
        for key, value in sorted(limits.items()):
            yield {**shown, "quota": key, "value": _number(value)}


def _name(name: str | None) -> str:
    return _DEFAULT if name is None else name


def _number(value: float | None) -> int | float | str:
    if value is None:
        return ""
    return int(value) if value.is_integer() else value


@quota.command(
    "set",
    epilog="""\b
Examples:
  tidemark quota set producer_byte_rate=1048576 consumer_byte_rate=2097152 --for-user alice
  tidemark quota set request_percentage=25 --for-default-user --dry-run
  tidemark quota set controller_mutation_rate=10 --for-user alice --for-client-id deployer
  tidemark quota set connection_creation_rate=20 --for-ip 10.0.0.7
""",
)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@_entity_options
@click.option("--dry-run", is_flag=True, help="Have it checked and shown, change nothing.")
@bootstrap_option
@output_option
def quota_set(
    settings: tuple[str, ...], dry_run: bool, bootstrap: str, output: str, **options: Any
) -> None:
    """Set limits of the entity that the options name, in every region; its other limits stay.

    Keys are Kafka's: producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage (of a node's event loop),
    controller_mutation_rate (partitions a second); of addresses connection_creation_rate (connections a second).
    """
    _change(_needed(options), _pairs(settings), bootstrap, output, dry=dry_run)


@quota.command(
    "remove",
    epilog="""\b
Examples:
  tidemark quota remove producer_byte_rate --for-user alice
  tidemark quota remove --for-user alice --for-client-id deployer --dry-run
""",
)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_entity_options
@click.option("--dry-run", is_flag=True, help="Have it checked and shown, change nothing.")
@bootstrap_option
@output_option
def quota_remove(
    keys: tuple[str, ...], dry_run: bool, bootstrap: str, output: str, **options: Any
) -> None:
    """Remove limits of the entity that the options name, all of them where no KEY is given."""
    entity = _needed(options)
    _change(entity, dict.fromkeys(keys), bootstrap, output, dry=dry_run)


def _needed(options: Mapping[str, Any]) -> dict[str, str | None]:
    entity = _entity(options)
    if not entity:
        fail(
            "say whose quota: --for-user, --for-client-id, both, or --for-ip; or their defaults",
            EXIT_USAGE,
        )
    return entity


def _pairs(settings: Sequence[str]) -> dict[str, float | None]:
    pairs: dict[str, float | None] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not key or not equals:
            fail(f"{setting!r} is not KEY=VALUE, such as producer_byte_rate=1048576", EXIT_USAGE)
        if key in pairs:
            fail(f"{key} is named twice", EXIT_USAGE)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            fail(f"{setting!r}: {text!r} is no number. The keys are {_KEYS}", EXIT_USAGE)
        pairs[key] = value
    return pairs


def _change(
    entity: Mapping[str, str | None], values: Mapping[str, float | None],
    bootstrap: str, output: str, *, dry: bool,
) -> None:  # fmt: skip
    """Change limits; without `values` all that there are go."""
    who = ", ".join(f"{kind} {_name(name)}" for kind, name in entity.items())
    with asked(bootstrap, f"the quota of {who} was not changed") as node:
        [before] = [*node.quotas(entity, strict=True).values()] or [{}]
        if not values:
            values = dict.fromkeys(before)
        if not values or not any(
            value is not None or key in before for key, value in values.items()
        ):
            fail(f"{who} has no such quota: tidemark quota list shows all", EXIT_NOT_FOUND)
        try:
            node.alter_quota(entity, values, dry=dry)
        except NodeError as error:  # whose words name no other key, which the node alone judges
            if _WRONG_KEY not in str(error):
                raise
            raise NodeError(f"{error}. The keys are {_KEYS}", error.error_code) from error
    rows = [
        {"quota": key, "before": _number(before.get(key)), "after": _number(value)}
        for key, value in values.items()
    ]
    print_rows(rows, output, title=f"the quota of {who} {'would be' if dry else 'was'} changed")
