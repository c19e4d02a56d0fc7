"""`tidemark topic` and `tidemark group`: look at them, and make or remove topics."""

import click

from region_broker.cli.kafka import (
    TIMEOUT_S,
    admin_client,
    bootstrap_option,
    client_config,
    kafka_errors,
    quiet,
    wait_for,
)
from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    fail,
    output_option,
    print_rows,
)


@click.group(epilog="Example: tidemark topic create orders --partitions 8")
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command(
    "create",
    epilog="""\b
Examples:
  tidemark topic create orders --partitions 8
  tidemark topic create audit --config retention.ms=604800000 --dry-run
""",
)
@click.argument("name")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1),
              help="How many; more cannot be added later.")  # fmt: skip
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--dry-run", is_flag=True, help="Check only, create nothing.")
@bootstrap_option
def topic_create(
    name: str, partitions: int, configs: tuple[str, ...], dry_run: bool, bootstrap: str
) -> None:
    """Create the topic NAME in every region."""
    from confluent_kafka.cimpl import NewTopic

    pairs = dict(config.partition("=")[::2] for config in configs)
    if any("=" not in config or config.startswith("=") for config in configs):
        fail("--config takes KEY=VALUE, such as --config retention.ms=604800000", EXIT_USAGE)
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=pairs)
    client = admin_client(bootstrap)
    answers = client.create_topics([new], validate_only=dry_run)
    wait_for(answers[name], f"topic {name} was not created")
    click.echo(f"topic {name} {'could be' if dry_run else 'was'} created, {partitions} partitions")


@topic.command("delete", epilog="Example: tidemark topic delete orders --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@bootstrap_option
def topic_delete(name: str, yes: bool, dry_run: bool, bootstrap: str) -> None:
    """Delete the topic NAME and its records, in every region."""
    client = admin_client(bootstrap)
    found = client.list_topics(timeout=TIMEOUT_S).topics.get(name)
    if found is None:
        fail(f"there is no topic {name}", EXIT_NOT_FOUND)
    if dry_run:
        click.echo(f"would delete topic {name} with {len(found.partitions)} partitions")
        return
    if not yes:
        click.confirm(f"delete topic {name} and all its records in every region?", abort=True)
    wait_for(client.delete_topics([name])[name], f"topic {name} was not deleted")
    click.echo(f"topic {name} was deleted")


@topic.command("list", epilog="Example: tidemark topic list -o json")
@click.option("--internal", is_flag=True, help="The ledgers too.")
@bootstrap_option
@output_option
def topic_list(internal: bool, bootstrap: str, output: str) -> None:
    """List topics."""
    topics = admin_client(bootstrap).list_topics(timeout=TIMEOUT_S).topics
    rows = [
        {"topic": name, "partitions": len(found.partitions)}
        for name, found in sorted(topics.items())
        if internal or not name.startswith("__")
    ]
    print_rows(rows, output, title="topics")


@topic.command("describe", epilog="Example: tidemark topic describe orders")
@click.argument("name")
@bootstrap_option
@output_option
def topic_describe(name: str, bootstrap: str, output: str) -> None:
    """Show the partitions of topic NAME and where their logs begin and end."""
    from confluent_kafka import Consumer, TopicPartition

    client = admin_client(bootstrap)
    found = client.list_topics(timeout=TIMEOUT_S).topics.get(name)
    if found is None:
        fail(f"there is no topic {name}", EXIT_NOT_FOUND)
    reader = Consumer(client_config(bootstrap, **{"group.id": "tidemark-cli"}), logger=quiet())
    rows = []
    with kafka_errors(f"the bounds of {name} could not be read"):
        for partition in sorted(found.partitions):
            low, high = reader.get_watermark_offsets(
                TopicPartition(name, partition), timeout=TIMEOUT_S
            )
            rows.append(
                {
                    "topic": name,
                    "partition": partition,
                    "leader": found.partitions[partition].leader,
                    "log_start": low,
                    "high_watermark": high,
                }
            )
    reader.close()
    print_rows(rows, output)


@click.group(epilog="Example: tidemark group describe billing")
def group() -> None:
    """List and describe consumer groups."""


@group.command("list", epilog="Example: tidemark group list -o json")
@bootstrap_option
@output_option
def group_list(bootstrap: str, output: str) -> None:
    """List consumer groups and their states."""
    client = admin_client(bootstrap)
    answer = wait_for(client.list_consumer_groups(), "groups were not listed")
    rows = [
        {"group": found.group_id, "state": found.state.name.lower()}
        for found in sorted(answer.valid, key=lambda found: found.group_id)
    ]
    print_rows(rows, output, title="groups")


@group.command("describe", epilog="Example: tidemark group describe billing")
@click.argument("group_id")
@bootstrap_option
@output_option
def group_describe(group_id: str, bootstrap: str, output: str) -> None:
    """Show the members of GROUP_ID and its committed offsets with their lag."""
    from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

    client = admin_client(bootstrap)
    found = wait_for(
        client.describe_consumer_groups([group_id])[group_id], f"group {group_id} is not described"
    )
    request = [ConsumerGroupTopicPartitions(group_id)]
    committed = wait_for(
        client.list_consumer_group_offsets(request)[group_id], f"no offsets of {group_id}"
    ).topic_partitions
    if found.state.name == "DEAD" and not committed:
        fail(f"there is no group {group_id}", EXIT_NOT_FOUND)
    owners = {
        (part.topic, part.partition): member.client_id
        for member in found.members
        for part in member.assignment.topic_partitions
    }
    reader = Consumer(client_config(bootstrap, **{"group.id": "tidemark-cli"}), logger=quiet())
    rows = []
    with kafka_errors("log ends could not be read"):
        for part in sorted(committed, key=lambda part: (part.topic, part.partition)):
            _low, high = reader.get_watermark_offsets(part, timeout=TIMEOUT_S)
            rows.append(
                {
                    "group": group_id,
                    "state": found.state.name.lower(),
                    "topic": part.topic,
                    "partition": part.partition,
                    "committed": part.offset,
                    "log_end": high,
                    "lag": max(high - part.offset, 0),
                    "member": owners.get((part.topic, part.partition), ""),
                }
            )
    reader.close()
    print_rows(rows, output, title=f"committed offsets of {group_id}")
