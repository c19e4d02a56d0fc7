"""``python -m tests.simulation.cost --seed N``: what the life of a seed costs, by layer.

The processor's time is sampled, as a profiler that counts calls makes short functions look dear. A sample counts for the
innermost frame that belongs to a layer, so what a layer asks of the standard library is its own.

Not here: judgement of the life; `python -m tests.simulation` judges.
"""

import logging
import signal
from collections import Counter
from types import FrameType
from typing import Final

import click

from tests.simulation.swarm.life import play

SAMPLE_S: Final = 0.002
LAYERS: Final = (
    ("HTTP, its clients and their judge", ("/aiohttp/", "prometheus_client", "region_broker/http_api/", "tests/simulation/http_",
     "tests/simulation/swarm/workloads/monitor")),
    ("clients, with kio's reading and writing", ("tests/fixtures/kafka_port", "tests/simulation/kafka_client", "/kio/",
     "tests/simulation/pipeliner", "tests/simulation/bank", "tests/simulation/swarm/")),
    ("event loop", ("/asyncio/", "tests/simulation/simulated_loop")),
    ("simulated network", ("tests/simulation/network",)),
    ("simulated disk and SQLite", ("tests/simulation/disk", "tests/simulation/sqlite")),
    ("trace", ("tests/simulation/trace",)),
    ("other parts of the simulation", ("/tests/", "/chaos/")),
    ("SQLAlchemy, Alembic, aiosqlite", ("sqlalchemy", "alembic", "aiosqlite")),
    ("wire", ("region_broker/wire/",)),
    ("handlers and groups", ("region_broker/handlers/", "region_broker/groups/")),
    ("partitions and logs", ("region_broker/partitions/", "region_broker/log/")),
    ("region: links, tidemarks, failover", ("region_broker/region/",)),
    ("other parts of the broker", ("region_broker/",)),
    ("cores", ("geo_replicator/", "idempotency/", "txn_coordinator/")),
)  # fmt: skip


def layer_of(frame: FrameType | None) -> str:
    """Return the layer of the innermost frame that has one."""
    while frame is not None:
        path = frame.f_code.co_filename
        for name, parts in LAYERS:
            if any(part in path for part in parts):
                return name
        frame = frame.f_back
    return "nothing of these"


@click.command()
@click.option("--seed", required=True, type=int, help="Whose life.")
@click.option("--minutes", default=1.0, show_default=True, help="Simulated minutes of trouble.")
@click.option("--regions", default=2, show_default=True, type=click.IntRange(2, 3))
def main(seed: int, minutes: float, regions: int) -> None:
    """Play the life of a seed and print the share of each layer."""
    logging.disable(logging.CRITICAL)
    shares: Counter[str] = Counter()
    signal.signal(signal.SIGPROF, lambda _number, frame: shares.update([layer_of(frame)]))
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    outcome = play(seed, minutes=minutes, regions=regions)
    signal.setitimer(signal.ITIMER_PROF, 0)
    for name, count in shares.most_common():
        click.echo(f"{count / shares.total():6.1%}  {name}")
    click.echo(f"{outcome.simulated_s:.0f} simulated s, {outcome.events} events")


if __name__ == "__main__":
    main()
