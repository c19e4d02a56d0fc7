"""`tidemark group`: look at consumer groups, put their offsets elsewhere, remove them.

Offsets are reset, and groups deleted, only where nobody is in the group: asked beforehand, and held by the broker,
which takes no commit from outside a group that has members.
Not here: where offsets go (`offset_plan`), topics (`topic`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from region_broker.cli.admin.offset_plan import (
    Move,
    PlanError,
    Standing,
    Target,
    To,
    parse_datetime,
    parse_duration,
    parse_topics,
    plan,
)
from region_broker.cli.kafka import (
    admin_client,
    bootstrap_option,
    bounds_of,
    client_config,
    kafka_errors,
    metadata_of,
    quiet,
    tell_if_behind,
    wait_for,
)
from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    agreed,
    fail,
    output_option,
    print_answered,
    print_rows,
)
from region_broker.ports.system.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]


@click.group(
    epilog="Examples: tidemark group describe billing · tidemark group reset-offsets billing --help"
)
def group() -> None:
    """List and describe consumer groups, reset their offsets, delete them."""


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
    from confluent_kafka import Consumer

    client = admin_client(bootstrap)
    found = _described(client, group_id)
    committed = _committed(client, group_id)
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
        for topic, partition in sorted({*committed, *owners}):
            _low, high = bounds_of(reader, topic, partition)
            offset = committed.get((topic, partition))
            rows.append(
                {
                    "group": group_id,
                    "state": found.state.name.lower(),
                    "topic": topic,
                    "partition": partition,
                    "committed": offset,
                    "log_end": high,
                    "lag": None if offset is None or high is None else max(high - offset, 0),
                    "member": owners.get((topic, partition), ""),
                }
            )
    reader.close()
    rows += [
        _idle_row(group_id, found.state.name.lower(), member.client_id)
        for member in found.members
        if not member.assignment.topic_partitions
    ]
    # Members and offsets come from the region that acts; the ends of the logs from the one that answers.
    acting = tell_if_behind(client)
    print_answered(rows, output, acting=acting, title=f"members and offsets of {group_id}")


def _idle_row(group_id: str, state: str, client_id: str) -> dict[str, Any]:
    """Return the row of a member that owns nothing, with the keys of all other rows."""
    empty = dict.fromkeys(("topic", "partition", "committed", "log_end", "lag"))
    return {"group": group_id, "state": state, **empty, "member": client_id}


def _described(client: "AdminClient", group_id: str) -> Any:
    answers = client.describe_consumer_groups([group_id])
    return wait_for(answers[group_id], f"group {group_id} is not described")


def _committed(client: "AdminClient", group_id: str) -> dict[Place, int]:
    """Return the offsets that a group committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    answers = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)])
    found = wait_for(answers[group_id], f"no offsets of {group_id}").topic_partitions
    return {(part.topic, part.partition): part.offset for part in found if part.offset >= 0}


@group.command(
    "reset-offsets",
    epilog="""\b
Examples:
  tidemark group reset-offsets billing --topic orders --to-earliest
  tidemark group reset-offsets billing --topic orders:3 --to-offset 1200 --execute
  tidemark group reset-offsets billing --all-topics --to-datetime 2026-01-31T13:00:00Z --execute
  tidemark group reset-offsets billing --topic orders --topic refunds:0,2 --by-duration PT1H
  tidemark group reset-offsets billing --topic orders --shift-by -100 --execute
""",
)
@click.argument("group_id", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,..]",
              help="All its partitions, or some; may be repeated.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="Every partition that the group has an offset in.")
@click.option("--to-earliest", is_flag=True, help="To the start of each log.")
@click.option("--to-latest", is_flag=True, help="To the end of each log.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset.")
@click.option("--to-datetime", metavar="ISO",
              help="To the first record at or after this time; UTC where it names no zone.")  # fmt: skip
@click.option("--shift-by", type=int, metavar="N",
              help="So many offsets further on, or back if negative.")  # fmt: skip
@click.option("--by-duration", metavar="PT1H",
              help="To the first record at or after so long ago (ISO 8601: P7D, PT1H30M).")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show where offsets would go: the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@bootstrap_option
@output_option
def group_reset_offsets(
    group_id: str,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    bootstrap: str,
    output: str,
    **place: Any,
) -> None:
    """Put the committed offsets of GROUP elsewhere; it must have no members.

    What would lie outside a log is put at its nearest end, and the table says so. At a mirror's address start and
    end are those that the mirror shows.
    """
    if dry_run and execute:
        fail("--dry-run and --execute exclude each other", EXIT_USAGE)
    if bool(topics) == all_topics:
        fail("give --topic, once or more, or --all-topics", EXIT_USAGE)
    try:
        target = _target(place)
        client = admin_client(bootstrap)
        _refuse_members(client, group_id)
        committed = _committed(client, group_id)
        wanted = _partitions(client, topics) if topics else sorted(committed)
        moves = [
            plan(target, standing) for standing in _standings(client, wanted, committed, target)
        ]
    except PlanError as error:
        fail(str(error), EXIT_USAGE)
    if not moves:
        fail(f"group {group_id} has no offsets: name topics with --topic", EXIT_NOT_FOUND)
    if execute:
        _commit(client, group_id, moves)
    rows = [
        {
            "topic": move.topic,
            "partition": move.partition,
            "from": move.before,
            "to": move.after,
            "note": move.note,
        }
        for move in moves
    ]
    did = "were reset" if execute else "would be reset; --execute does it"
    print_rows(rows, output, title=f"offsets of {group_id} {did}")


def _target(place: Mapping[str, Any]) -> Target:
    """Return the one place that the options name; raises `PlanError`."""
    given = {name: value for name, value in place.items() if value not in (None, False)}
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in place)
        raise PlanError(f"give exactly one of {names}")
    ((name, value),) = given.items()
    match name:
        case "to_earliest":
            return Target(To.EARLIEST)
        case "to_latest":
            return Target(To.LATEST)
        case "to_offset":
            return Target(To.OFFSET, value)
        case "shift_by":
            return Target(To.SHIFT, value)
        case "to_datetime":
            return Target(To.TIME, parse_datetime(value))
        case _:
            return Target(To.TIME, SystemClock().wall_ms() - parse_duration(value))


def _refuse_members(client: "AdminClient", group_id: str) -> None:
    """End the command if anybody is in the group."""
    state = _described(client, group_id).state.name
    if state not in ("EMPTY", "DEAD"):
        fail(
            f"group {group_id} has members (its state is {state.lower()}): stop them first, or wait until their"
            " sessions time out",
            EXIT_FAILED,
        )


def _partitions(client: "AdminClient", words: tuple[str, ...]) -> list[Place]:
    """Return the partitions that `--topic` names; ends the command if one does not exist."""
    topics = metadata_of(client).topics
    wanted = []
    for topic, partitions in parse_topics(words).items():
        present = set(topics[topic].partitions) if topic in topics else set()
        missing = (partitions or set()) - present
        if not present or missing:
            what = f"partition {min(missing)} of topic {topic}" if present else f"topic {topic}"
            fail(f"there is no {what}", EXIT_NOT_FOUND)
        wanted += [(topic, partition) for partition in sorted(partitions or present)]
    return wanted


def _standings(
    client: "AdminClient", wanted: list[Place], committed: Mapping[Place, int], target: Target
) -> list[Standing]:
    """Ask where the logs begin and end, and what lies at the target's time."""
    from confluent_kafka.admin._listoffsets import OffsetSpec

    at: Any = OffsetSpec
    starts = _listed(client, wanted, at.earliest())
    ends = _listed(client, wanted, at.latest())
    timed = _listed(client, wanted, at.for_timestamp(target.value)) if target.to is To.TIME else {}
    return [
        Standing(
            topic=place[0],
            partition=place[1],
            log_start=starts[place],
            log_end=ends[place],
            committed=committed.get(place),
            at_time=timed[place] if timed.get(place, -1) >= 0 else None,
        )
        for place in wanted
    ]


def _listed(client: "AdminClient", wanted: list[Place], spec: Any) -> dict[Place, int]:
    """Return one offset of each partition."""
    from confluent_kafka import TopicPartition

    if not wanted:
        return {}
    answers = client.list_offsets({TopicPartition(*place): spec for place in wanted})
    return {
        (part.topic, part.partition): wait_for(
            answer, f"the bounds of {part.topic}-{part.partition} could not be read"
        ).offset
        for part, answer in answers.items()
    }


def _commit(client: "AdminClient", group_id: str, moves: list[Move]) -> None:
    """Commit in the group's name; ends the command if an offset was refused."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    parts = [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    answers = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id, parts)])
    answer = wait_for(answers[group_id], f"offsets of {group_id} were not reset")
    for part in answer.topic_partitions:
        if part.error is not None:
            fail(
                f"offsets of {group_id}: {part.topic}-{part.partition} was not reset, others may have been:"
                f" {part.error.str()} ({part.error.name()})"
            )


@group.command("delete", epilog="Example: tidemark group delete billing --yes")
@click.argument("group_id", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@bootstrap_option
def group_delete(group_id: str, yes: bool, dry_run: bool, bootstrap: str) -> None:
    """Delete GROUP with all its offsets; it must have no members."""
    client = admin_client(bootstrap)
    _refuse_members(client, group_id)
    count = len(_committed(client, group_id))
    if dry_run:
        click.echo(f"would delete group {group_id} with {count} offsets")
        return
    if not yes:
        agreed(f"delete group {group_id} with {count} offsets?")
    answers = client.delete_consumer_groups([group_id])
    wait_for(answers[group_id], f"group {group_id} was not deleted")
    click.echo(f"group {group_id} was deleted")
