"""`tidemark init`: the birth of a cluster, once in its life, at its primary region; the beginning of a region of several nodes."""

import asyncio
import logging
from pathlib import Path

import click

from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.config.node_config import ConfigError, NodeConfig


@click.command(
    epilog="""\b
Examples:
  tidemark init --config eu.toml --dry-run                ask the other regions, write nothing
  tidemark init --config eu.toml                          the other regions' nodes run, and wait for the birth
  tidemark init --config eu.toml --no-history-elsewhere   they do not run yet, and the cluster is new
  tidemark init --config us1.toml                         at one node of another region of several: its quorum begins
"""
)
@click.option(
    "--config", "config_path", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration of the primary region's node, or of one node of a region of several; that one must not be running.",
)  # fmt: skip
@click.option("--no-history-elsewhere", is_flag=True,
              help="Nodes that cannot be asked hold no data of this cluster: you know it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def init(config_path: Path, no_history_elsewhere: bool, dry_run: bool) -> None:
    """Give birth to a cluster: once, at one node of its primary region, before its first start.

    A node whose data folder has no history never acts: it joins the region that acts, or waits. So an empty disk
    in the place of a full one does no harm. The first node must be told that there is nothing to join. Where
    its region has several nodes, only one of them is told: the others join it, as those of other regions do.

    Another region of several nodes begins so, too, at one of its nodes: the others join that one, and the region
    joins the one that acts. A node that was emptied never begins by itself beside the others.
    """
    try:
        config = NodeConfig.load(config_path)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(_init(config, no_history_elsewhere=no_history_elsewhere, dry_run=dry_run))


async def _init(config: NodeConfig, *, no_history_elsewhere: bool, dry_run: bool) -> None:
    from region_broker.node.birth import BirthOutcome, give_birth
    from region_broker.node.node_ports import NodeRefused, Ports
    from region_broker.ports.system.chance import SystemChance
    from region_broker.ports.system.clock import SystemClock
    from region_broker.ports.system.disk import RealDisk
    from region_broker.ports.system.network import AsyncioNetwork
    from region_broker.region.folder.identity_file import IdentityDamaged

    ports = Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork())
    try:
        outcome = await give_birth(
            config, ports, no_history_elsewhere=no_history_elsewhere, dry_run=dry_run
        )
    except (NodeRefused, IdentityDamaged, OSError) as error:
        fail(str(error))
    cluster = f"cluster {config.cluster_id} in {config.data_dir}"
    match outcome:
        case BirthOutcome.BORN:
            started = f"the node of region {config.region}"
            if config.siblings:
                started = f"node {config.own_node.node_id} of region {config.region}, and the others, which join it"
            click.echo(f"{cluster} is born: start {started}")
        case BirthOutcome.BORN_ALREADY:
            click.echo(f"{cluster} is born already: nothing was changed")
        case BirthOutcome.WOULD_BE_BORN:
            click.echo(f"{cluster} can be born; nothing was changed")
        case BirthOutcome.FOUNDED:
            click.echo(
                f"region {config.region} begins in {config.data_dir}: start node {config.own_node.node_id}, and the others, which"
                " join it. It joins the region that acts"
            )
        case BirthOutcome.WOULD_BE_FOUNDED:
            click.echo(
                f"region {config.region} can begin in {config.data_dir}; nothing was changed"
            )
