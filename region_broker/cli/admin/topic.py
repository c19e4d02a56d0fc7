"""`tidemark topic`: look at topics, make, alter and remove them.

`alter` has the broker check all that is asked before it changes any of it.
Not here: what a change comes to (`topic_changes`), groups (`group`).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from idempotency.identity import INTERNAL_TOPICS
from region_broker.cli.admin.topic_changes import (
    ChangeError,
    Changes,
    Setting,
    before_and_after,
    parse_configs,
)
from region_broker.cli.kafka import (
    admin_client,
    bootstrap_option,
    bounds_of,
    client_config,
    kafka_errors,
    metadata_of,
    or_unseen,
    quiet,
    tell_if_behind,
    wait_for,
)
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    agreed,
    fail,
    output_option,
    print_answered,
    print_json,
    print_rows,
)
from region_broker.cli.region_client import Cluster, parse_urls, reports_errors, url_option
from region_broker.limits import PARTITION_COUNT_MAX
from region_broker.workbench.node_http import request

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.group(epilog="Example: tidemark topic create orders --partitions 8")
def topic() -> None:
    """Create, alter, list, describe and delete topics; see which deletions can be undone."""


@topic.command(
    "create",
    epilog="""\b
Examples:
  tidemark topic create orders --partitions 8
  tidemark topic create audit --config retention.ms=604800000 --dry-run
""",
)
@click.argument("name")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1, PARTITION_COUNT_MAX),
              help="How many; `tidemark topic alter` can add more later.")  # fmt: skip
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--dry-run", is_flag=True, help="Check only, create nothing.")
@bootstrap_option
def topic_create(
    name: str, partitions: int, configs: tuple[str, ...], dry_run: bool, bootstrap: str
) -> None:
    """Create the topic NAME in every region."""
    from confluent_kafka.cimpl import NewTopic

    try:
        pairs = parse_configs(configs)
    except ChangeError as error:
        fail(str(error), EXIT_USAGE)
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=pairs)
    client = admin_client(bootstrap)
    with kafka_errors(f"topic {name} was not created"):
        answers = client.create_topics([new], validate_only=dry_run)
    wait_for(answers[name], f"topic {name} was not created")
    click.echo(f"topic {name} {'could be' if dry_run else 'was'} created, {_counted(partitions)}")


@topic.command(
    "alter",
    epilog="""\b
Examples:
  tidemark topic alter orders --config retention.ms=604800000 --dry-run
  tidemark topic alter orders --delete-config retention.ms --config cleanup.policy=compact
  tidemark topic alter orders --partitions 16
""",
)
@click.argument("name")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE",
              help="Set a config; may be repeated.")  # fmt: skip
@click.option("--delete-config", "gone", multiple=True, metavar="KEY",
              help="Go back to the default of a config; may be repeated.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, PARTITION_COUNT_MAX),
              help="How many there shall be: more than now. Keys go to other partitions then.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Have it checked and shown, change nothing.")
@bootstrap_option
@output_option
def topic_alter(
    name: str,
    configs: tuple[str, ...],
    gone: tuple[str, ...],
    partitions: int | None,
    dry_run: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Change the configs of topic NAME, or give it more partitions, in every region.

    The broker checks everything first, so a mistake changes nothing. Prints each setting before and after.
    """
    try:
        changes = Changes(
            new_configs=parse_configs(configs),
            gone_configs=tuple(dict.fromkeys(gone)),
            partition_count=partitions,
        )
    except ChangeError as error:
        fail(str(error), EXIT_USAGE)
    client = admin_client(bootstrap)
    found = metadata_of(client).topics.get(name)
    if found is None:
        fail(f"there is no topic {name}{or_unseen(name)}", EXIT_NOT_FOUND)
    rows = before_and_after(changes, _settings(client, name), len(found.partitions))
    for only_checked in (True,) if dry_run else (True, False):
        _alter(client, name, changes, only_checked=only_checked)
    print_rows(rows, output, title=f"topic {name} {'would be' if dry_run else 'was'} altered")


def _settings(client: "AdminClient", name: str) -> dict[str, Setting]:
    """Return all configs of a topic, as the region that was asked knows them."""
    from confluent_kafka.admin._config import ConfigResource, ConfigSource

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    answers = client.describe_configs([resource])
    entries = wait_for(answers[resource], f"the configs of {name} could not be read")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    settings = {}
    for key, entry in entries.items():
        inherited = [each.value for each in entry.synonyms.values() if each.source != own]
        settings[key] = Setting(
            value=str(entry.value),
            default=str(inherited[0]) if inherited else _default_of(key),
            is_default=entry.source != own,
        )
    return settings


def _default_of(key: str) -> str:
    """Return the default of a config that no node-wide one stands behind; as this version of Tidemark has it."""
    from region_broker.controller.topic_configs import TOPIC_CONFIGS

    known = TOPIC_CONFIGS.get(key)
    return "" if known is None else known.default


def _alter(client: "AdminClient", name: str, changes: Changes, *, only_checked: bool) -> None:
    """Have the broker change, or only check, configs first and then partitions; ends the command on an error."""
    from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
    from confluent_kafka.cimpl import NewPartitions

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in changes.new_configs.items()
    ] + [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key in changes.gone_configs
    ]
    altered = not only_checked and bool(entries)
    if entries:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        answers = client.incremental_alter_configs([resource], validate_only=only_checked)
        wait_for(answers[resource], f"topic {name} was not altered")
    if changes.partition_count is not None:
        grown = client.create_partitions(
            [NewPartitions(name, changes.partition_count)], validate_only=only_checked
        )
        what = (
            "its configs were changed, but no partition was added" if altered else "it did not grow"
        )
        wait_for(grown[name], f"topic {name}: {what}")


@topic.command("delete", epilog="Example: tidemark topic delete orders --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@bootstrap_option
def topic_delete(name: str, yes: bool, dry_run: bool, bootstrap: str) -> None:
    """Delete the topic NAME and its records, in every region."""
    client = admin_client(bootstrap)
    found = metadata_of(client).topics.get(name)
    if found is None:
        fail(f"there is no topic {name}{or_unseen(name)}", EXIT_NOT_FOUND)
    if dry_run:
        click.echo(f"would delete topic {name} with {_counted(len(found.partitions))}")
        return
    if not yes:
        agreed(f"delete topic {name} and all its records in every region?")
    wait_for(client.delete_topics([name])[name], f"topic {name} was not deleted")
    click.echo(f"topic {name} was deleted")


@topic.command("deleted", epilog="Example: tidemark topic deleted -o json")
@url_option
@output_option
@reports_errors
def topic_deleted(url: str | None, output: str) -> None:
    """List deleted topics whose records are still on disk, in every region that answers, and until when.

    `tidemark log export FOLDER` prints their records, on the machine that has the folder.
    """
    cluster = Cluster(parse_urls(url))
    found: list[dict[str, Any]] = []
    for region in sorted(cluster.views()):
        answer = request(cluster.http[region], "GET", "/v1/region/deleted-topics")
        found.extend({"region": region, **each} for each in answer["deleted"])
    if output == "json":
        print_json({"deleted": found, "unreachable": cluster.dead})
        return
    rows = [
        {
            "topic": _deleted_name(each),
            "id": each["topic_id"],
            "region": each["region"],
            "partitions": each["partition_count"],
            "bytes": each["size_bytes"],
            "deleted": _time(each["deleted_wall_ms"]),
            "by": each["why"] or "?",
            "kept until": _time(each["kept_until_wall_ms"]),
            "folder": each["folder"],
        }
        for each in found
    ]
    if not rows:
        click.echo("no region that answers keeps a deleted topic")
        return
    print_rows(rows, output, title="deleted topics")


def _deleted_name(kept: Mapping[str, Any]) -> str:
    name = str(kept["name"] or "?")
    return name if kept["partition"] is None else f"{name}, partition {kept['partition']}"


def _time(wall_ms: int) -> str:
    if not wall_ms:
        return "?"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")


@topic.command("list", epilog="Example: tidemark topic list -o json")
@click.option("--internal", is_flag=True, help="The ledgers too.")
@bootstrap_option
@output_option
def topic_list(internal: bool, bootstrap: str, output: str) -> None:
    """List topics, as the region that answers knows them: a mirror may be behind, and says so."""
    client = admin_client(bootstrap)
    topics = metadata_of(client).topics
    rows = [
        {"topic": name, "partitions": len(found.partitions)}
        for name, found in sorted(topics.items())
        if internal or name not in INTERNAL_TOPICS
    ]
    print_answered(rows, output, acting=tell_if_behind(client), title="topics")


@topic.command(
    "describe",
    epilog="""\b
Examples:
  tidemark topic describe orders
  tidemark topic describe orders --configs -o json
""",
)
@click.argument("name")
@click.option("--configs", "show_configs", is_flag=True, help="Its configs instead.")
@bootstrap_option
@output_option
def topic_describe(name: str, show_configs: bool, bootstrap: str, output: str) -> None:
    """Show the partitions of topic NAME and where their logs begin and end, or its configs."""
    from confluent_kafka import Consumer

    client = admin_client(bootstrap)
    acting = tell_if_behind(client)
    found = metadata_of(client).topics.get(name)
    if found is None:
        fail(f"there is no topic {name}{or_unseen(name)}", EXIT_NOT_FOUND)
    if show_configs:
        rows = [
            {"config": key, "value": setting.value, "default": setting.is_default}
            for key, setting in sorted(_settings(client, name).items())
        ]
        print_answered(rows, output, acting=acting, title=f"configs of {name}")
        return
    reader = Consumer(client_config(bootstrap, **{"group.id": "tidemark-cli"}), logger=quiet())
    bounds: list[dict[str, Any]] = []
    with kafka_errors(f"the bounds of {name} could not be read"):
        for partition in sorted(found.partitions):
            low, high = bounds_of(reader, name, partition)
            bounds.append(
                {
                    "topic": name,
                    "partition": partition,
                    "leader": found.partitions[partition].leader,
                    "log_start": low,
                    "high_watermark": high,
                }
            )
    reader.close()
    print_answered(bounds, output, acting=acting)


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"
