"""Ports that a local cluster is given."""

import socket
from pathlib import Path
from uuid import UUID

from region_broker.cli.local_cluster import PORTS_OF_OUR_OWN, LocalCluster

RANGE_OF_LINUX = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_INV_LC4_a_region_that_is_down_keeps_its_ports_from_whatever_is_dialled(
    tmp_path: Path,
) -> None:
    plan = LocalCluster.open(tmp_path, region_count=8, port=0, new_cluster_id=UUID(int=1)).plan
    ports = [port for r in plan.regions for port in (r.kafka_port, r.http_port, r.peer_port)]
    assert len(set(ports)) == 3 * 8
    first, last = PORTS_OF_OUR_OWN
    assert all(first <= port < last for port in ports)
    if RANGE_OF_LINUX.exists():
        assert last <= int(RANGE_OF_LINUX.read_text().split()[0])
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))
