"""``python -m chaos.drill --seed N --drills M``: two failovers over three regions, and how long each client stood still.

Drill i of seed N is the only one of seed N + i: one command replays it. Each drill runs in a process of its own, and
ends in time: a client that librdkafka never lets go ends with it.

A standstill of librdkafka can be looked into with `--trace`: `clients.log` keeps what each client logs, beside the nodes' logs.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from confluent_kafka import KafkaException

from chaos.drill.clients import DrillClients
from chaos.drill.gaps import gaps_s
from chaos.drill.play import Drill, Third
from region_broker.client import ACROSS_REGIONS
from region_broker.workbench.cluster_plan import ClusterError
from region_broker.workbench.stage import StageError

_DRILL_S: Final = 600.0
# What librdkafka does where nobody has set anything.
_BARE: Final = {
    "metadata.recovery.rebootstrap.trigger.ms": 300_000,
    "socket.timeout.ms": 60_000,
    "socket.connection.setup.timeout.ms": 30_000,
    "api.version.request.timeout.ms": 10_000,
    "connections.max.idle.ms": 0,
    "reconnect.backoff.max.ms": 10_000,
    "transaction.timeout.ms": 60_000,
}
_TRACE: Final = {"debug": "eos,broker,protocol,metadata", "log_level": 7}


@click.command()
@click.option("--seed", default=1, show_default=True, help="What is drawn from.")
@click.option("--drills", default=1, show_default=True, help="How many.")
@click.option(
    "--third",
    type=click.Choice([each.name.lower() for each in Third]),
    help="How the third region is at the second failover; drawn if not given.",
)
@click.option("--tellers", default=5, show_default=True, help="Transactional producers.")
@click.option("--workers", default=3, show_default=True, help="Consume-process-produce clients.")
@click.option("--tolerated", default=10.0, show_default=True, help="Seconds of standstill.")
@click.option("--patience", default=100.0, show_default=True, help="Seconds to wait for a client.")
@click.option("--set", "settings", multiple=True, help="librdkafka's key=value for all clients.")
@click.option("--bare", is_flag=True, help="As librdkafka ships: without ACROSS_REGIONS.")
@click.option("--trace", is_flag=True, help="Keep what librdkafka logs.")
@click.option("--keep", is_flag=True, help="Leave the folders of good drills, too.")
@click.option("--in-this-process", type=click.Path(path_type=Path), hidden=True)
def main(  # noqa: PLR0913 -- one for each option
    *, seed: int, drills: int, third: str | None, tellers: int, workers: int, tolerated: float,
    patience: float, settings: tuple[str, ...], bare: bool, trace: bool, keep: bool,
    in_this_process: Path | None,
) -> None:  # fmt: skip
    """Fail over twice, and print a line for each drill: the longest standstill of each phase, and whose it was."""
    pairs = _pairs(settings)
    if in_this_process is not None:
        state = Third[third.upper()] if third else list(Third)[seed % len(Third)]
        drill = Drill(seed, in_this_process, state, patience)
        config = {**(_BARE if bare else ACROSS_REGIONS), **pairs}
        clients = DrillClients(
            drill.cluster.bootstrap, seed, tellers=tellers, workers=workers,
            config={**config, **(_TRACE if trace else {})},
        )  # fmt: skip
        sys.exit(0 if _play(drill, clients, tolerated) else 1)
    failed = []
    for number in range(seed, seed + drills):
        folder = Path(tempfile.mkdtemp(prefix=f"tidemark-drill-{number}-"))
        how = _run(number, folder)
        if how:
            failed.append(number)
            click.echo(f"  {how}; folder: {folder}")
        elif not keep:
            shutil.rmtree(folder)
    click.echo(f"{drills - len(failed)} of {drills} drills within {tolerated:.0f} s; not: {failed}")
    sys.exit(1 if failed else 0)


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--set {each}: give key=value")
        pairs[key] = value
    return pairs


def _run(seed: int, folder: Path) -> str:
    """Play the drill of a seed in a process of its own; return how it failed, empty if it did not."""
    command = [sys.executable, "-m", "chaos.drill", *sys.argv[1:],
               "--seed", str(seed), "--in-this-process", str(folder)]  # fmt: skip
    with (folder / "clients.log").open("wb") as log:
        try:
            code = subprocess.run(command, stderr=log, timeout=_DRILL_S, check=False).returncode
        except subprocess.TimeoutExpired:
            return f"not over after {_DRILL_S:.0f} s"
    return f"exit {code}" if code else ""


def _play(drill: Drill, clients: DrillClients, tolerated_s: float) -> bool:
    """Return whether nobody stood still for longer than that while a region acted."""
    try:
        drill.set_up(clients)
        drill.play(clients)
    except (StageError, ClusterError, KafkaException, OSError) as error:
        drill.blame(f"the drill could not go on: {error!r}")
    finally:
        left = clients.stop()
        if left:
            drill.tell(f"never let go by librdkafka: {', '.join(left)}")
        drill.tear_down()
    found = gaps_s(clients.times.of(clients.names), drill.phases)
    line, sound = [], not drill.anomalies
    for phase in drill.phases:
        gaps = found[phase.name]
        client = max(gaps, key=gaps.__getitem__)
        line.append(f"{phase.name} {gaps[client]:.1f} s ({client})")
        sound = sound and (phase.outage or gaps[client] <= tolerated_s)
        drill.tell(f"{phase.name}: " + ", ".join(f"{n} {gap:.1f}" for n, gap in gaps.items()))
    click.echo(f"seed {drill.seed} {drill.third.name.lower()}: " + "; ".join(line))
    return sound


if __name__ == "__main__":
    main()
