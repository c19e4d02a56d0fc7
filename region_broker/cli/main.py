"""The `tidemark` command: a group whose commands are imported only when one of them is called.

Start-up stays under 150 ms that way. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 auth,
5 timed out with unknown outcome; `reconcile` has its own (see its help).
"""

import gc
import importlib
import sys
from typing import Final

import click

_COMMANDS: Final = {
    "acl": ("admin.acl:acl", "Who may do what: list, add, remove, explain."),
    "audit": ("audit:audit", "The audit trail of a node: verify, list, tail, head."),
    "bench": ("bench.command:bench", "Measure a broker: produce, consume, transactions."),
    "broker": ("broker:broker", "Run one node from a configuration file."),
    "cert": ("cert:cert", "Certificates: a private CA, and those of nodes and users."),
    "cluster": (
        "cluster:cluster",
        "Nodes of a region: status, quorum, drain, move, remove, upgrade.",
    ),
    "consume": ("records.consume:consume", "Print the records of a topic."),
    "context": ("context.command:context", "Name clusters, so that commands need no addresses."),
    "demo": (
        "demo.command:demo",
        "Two regions, a real workload, a region killed, failover, proof.",
    ),
    "dev": ("dev:dev", "Run a local cluster of regions for development."),
    "doctor": ("doctor:doctor", "Say what is missing on this machine and how to mend it."),
    "group": ("admin.group:group", "Consumer groups: list, describe, reset offsets, delete."),
    "init": ("init:init", "Give birth to a cluster at its primary region, once."),
    "key": ("key:key", "Keys that topics are sealed under at rest: make, rotate, destroy."),
    "log": ("inspect.log_export:log", "Log files: dump batches, export records."),
    "node": ("admin.node:node", "Nodes: see and change what one counts on while it runs."),
    "produce": (
        "records.produce:produce",
        "Send records from lines of standard input or of files.",
    ),
    "quota": ("admin.quota:quota", "Client quotas: list, set, remove."),
    "reconcile": ("reconcile:reconcile", "Prove with Spark that two regions hold the same."),
    "region": ("region:region", "Regions: status, planned switch, failover, losses."),
    "token": ("token:token", "Tokens for the HTTP port: create, list, revoke."),
    "top": ("inspect.top:top", "Watch the regions live: requests, latency, tidemarks, lag."),
    "topic": (
        "admin.topic:topic",
        "Topics: create, alter, list, describe, delete; what is deleted.",
    ),
    "user": ("user:user", "Users: create, set passwords, list, delete; keys of the first one."),
    "txn": ("txn:txn", "Transactions: list, describe, abort, verdict."),
}

_YOUNG_OBJECTS: Final = 20_000
"""How many objects are made between two looks for cycles: imports make many, and cycles of next to none."""


class LazyGroup(click.Group):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module_name, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        module = importlib.import_module(f"region_broker.cli.{module_name}")
        command: click.Command = getattr(module, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples: tidemark demo · tidemark dev --regions 2 · tidemark region status",
)
@click.version_option(package_name="tidemark")
def main() -> None:
    """Tidemark: a message queue over several regions that loses no transaction by halves.

    It speaks the Kafka protocol: your Kafka clients work unchanged. Start with `tidemark demo`.
    """


def run() -> None:
    """Entry point of the `tidemark` script."""
    if sys.flags.optimize:
        click.echo("tidemark keeps its assertions: do not run it under python -O.", err=True)
        sys.exit(2)
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
    main()
