"""Clients of regions whose nodes stand still: none of them waits for long."""

from typing import Final

from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.plain_writer import PlainWriter
from tests.simulation.swarm.workloads.setting import Load, Visitor

ANY_SHARE: Final = 0.05
"""How often a client that looks for who leads finds just any node."""
CALL_S: Final = 2.0
READ_EVERY_S: Final = 0.2


def hasten(clients: Clients) -> None:
    """Let no client wait for long."""
    for writer in clients.writers:
        writer.call_s = CALL_S
    for bank in clients.banks:
        bank.teller.call_s = CALL_S
    for watcher in clients.watchers:
        watcher.call_s, watcher.rest_s = CALL_S, READ_EVERY_S
    for processor in clients.processors:
        processor.call_s = CALL_S
    for workload in clients.workloads.values():
        for client in workload.clients if isinstance(workload, Load) else ():
            if isinstance(client, Visitor | PlainWriter):
                client.call_s = CALL_S
