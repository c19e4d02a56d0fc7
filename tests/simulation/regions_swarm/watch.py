"""What is looked at all the time while regions live.

INV-RGW1  in a region a leader epoch is led by one life of one node
INV-RGW2  a region epoch is acted under by one region
"""

import asyncio
from typing import Final

from tests.simulation.cluster_regions import AnyNode, leader_epoch_of
from tests.simulation.regions_swarm.stage import Stage

LOOK_S: Final = 0.02


class Watch:
    """`run` beside a life."""

    def __init__(self, stage: Stage) -> None:
        """Nothing was seen yet."""
        self._stage = stage
        self.led: dict[tuple[str, int], AnyNode] = {}
        self.acted: dict[int, str] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look once."""
        stage = self._stage
        stage.note_contacts()
        for name, region in stage.regions.items():
            for node in stage.serving(region):
                if node.died:
                    continue
                if epoch := leader_epoch_of(node):
                    first = self.led.setdefault((name, epoch), node)
                    if first is not node:
                        stage.blame(
                            f"{name}: leader epoch {epoch} is led by {first.name} and {node.name}"
                        )
                if node.node.role.acting:
                    acts = self.acted.setdefault(int(node.node.role.region_epoch), name)
                    if acts != name:
                        stage.blame(
                            f"region epoch {node.node.role.region_epoch} is acted under by {acts} and {name}"
                        )
