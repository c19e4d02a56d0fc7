"""A network for each node: namespaces, joined by veth pairs to the one that the drill and its clients live in.

A cut gives either end of a pair the hardware address of nobody: what is sent arrives nowhere, and neither side is told. A node that is
parted from the others has what would be forwarded between them dropped, in the same silence. The drill
runs in namespaces of its own (`inside`), so that all of this is gone when it ends, however it ends. Needs root, or a system that
lets users make namespaces.

Not here: who is cut when (`stage`).
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from region_broker.workbench.cluster_plan import ClusterPlan, RegionPlace

_INSIDE: Final = "CHAOS_NODES_INSIDE"
_NOBODY: Final = "02:00:00:00:00:99"
_NAMES: Final = Path("/run/netns")


def is_inside() -> bool:
    """Return whether this process has namespaces of its own."""
    return _INSIDE in os.environ


def begin_inside(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become `python -m MODULE` with these arguments, in network and mount namespaces of its own; raises OSError."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [
        "unshare",
        *as_root,
        "--net",
        "--mount",
        sys.executable,
        "-m",
        module,
        *arguments,
    ]
    os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})


def run(*command: str) -> None:
    """Run a tool; raises OSError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")


class NodeNetworks:
    """One network for each node of a plan, by its name. To be used inside only."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make them; raises OSError."""
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        _NAMES.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", str(_NAMES))
        run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number in self._numbers.values():
            self._make(number)

    @staticmethod
    def _make(number: int) -> None:
        inner, net = f"n{number}", f"10.77.{number}"
        run("ip", "netns", "add", inner)
        run(
            "ip",
            "link",
            "add",
            f"c{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            inner,
        )
        run("ip", "addr", "add", f"{net}.1/30", "dev", f"c{number}")
        run("ip", "link", "set", f"c{number}", "up")
        run("ip", "-n", inner, "addr", "add", f"{net}.2/30", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", inner, "link", "set", device, "up")
        run("ip", "-n", inner, "route", "add", "default", "via", f"{net}.1")

    def placed(self, plan: ClusterPlan) -> ClusterPlan:
        """Return the plan with each node in its network."""
        return msgspec.structs.replace(plan, regions=[self._moved(each) for each in plan.regions])

    def _moved(self, region: RegionPlace) -> RegionPlace:
        first, *others = (f"10.77.{self._numbers[node.name]}.2" for node in region.nodes)
        siblings = [
            msgspec.structs.replace(ports, host=host)
            for ports, host in zip(region.siblings, others, strict=True)
        ]
        return msgspec.structs.replace(region, host=first, siblings=siblings)

    def prefix(self, name: str) -> list[str]:
        """Return what starts a command in a node's network."""
        return ["ip", "netns", "exec", f"n{self._numbers[name]}"]

    def cut(self, name: str) -> None:
        """Let nothing through between a node and all others."""
        for space, address, device in self._ends(name):
            run(
                "ip",
                *space,
                "neigh",
                "replace",
                address,
                "lladdr",
                _NOBODY,
                "nud",
                "permanent",
                "dev",
                device,
            )

    def heal(self, name: str) -> None:
        """Let everything through again."""
        for space, address, device in self._ends(name):
            run("ip", *space, "neigh", "del", address, "dev", device)

    def part(self, name: str) -> None:
        """Let nothing through between a node and the other nodes; clients, which live outside, reach all of them."""
        self._rules("add", name)

    def join(self, name: str) -> None:
        """Let that through again."""
        self._rules("del", name)

    def _rules(self, what: str, name: str) -> None:
        own = f"10.77.{self._numbers[name]}.2"
        for other, number in self._numbers.items():
            if other != name:
                ways = (own, f"10.77.{number}.2"), (f"10.77.{number}.2", own)
                for source, target in ways:
                    run("ip", "rule", what, "from", source, "to", target, "blackhole")

    def _ends(self, name: str) -> list[tuple[list[str], str, str]]:
        number = self._numbers[name]
        return [
            ([], f"10.77.{number}.2", f"c{number}"),
            (["-n", f"n{number}"], f"10.77.{number}.1", "eth0"),
        ]
