"""Topics that come and go while everything else happens: made and deleted through any region.

INV-SWT1  at the end all regions have the same topics, under the same ids
"""

import asyncio
import random
from typing import Final

from tests.simulation.bank import Regions
from tests.simulation.kafka_client import CREATE_TOPICS, Connection, Refused

DELETE_TOPICS: Final = 20
NAMES: Final = 4
REST_S: Final = 1.5
CALL_S: Final = 30.0


class Churner:
    """Makes and deletes a few topics again and again."""

    def __init__(self, reach: Regions, chance: random.Random) -> None:
        """Nothing is connected before `run`."""
        self.closed = asyncio.Event()
        self.changes = 0
        self._reach, self._chance = reach, chance
        self._network = reach.fabric.site("churner")

    async def run(self) -> None:
        """Change until closed."""
        while not self.closed.is_set():
            region = self._chance.choice(list(self._reach.regions.values()))
            try:
                async with asyncio.timeout(CALL_S):
                    connection = await Connection.open(self._network, region.kafka_port)
                    await self._change(connection, f"churn-{self._chance.randrange(NAMES)}")
                    connection.close()
            except (OSError, Refused):
                pass
            await asyncio.sleep(self._chance.uniform(0, 2 * REST_S))

    async def _change(self, connection: Connection, name: str) -> None:
        if self._chance.random() < 0.5:
            rows = [{"name": name, "num_partitions": self._chance.randrange(1, 4),
                     "replication_factor": 1, "assignments": (), "configs": ()}]  # fmt: skip
            answer = await connection.call(
                CREATE_TOPICS, 5, {"topics": rows, "timeout": 10_000, "validate_only": False}
            )
            [row] = answer.topics
        else:
            answer = await connection.call(
                DELETE_TOPICS, 4, {"topic_names": (name,), "timeout": 10_000}
            )
            [row] = answer.responses
        if row.error_code.value:
            raise Refused("a change of topics", row.error_code)
        self.changes += 1
