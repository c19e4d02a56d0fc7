"""``python -m chaos.regions --rounds N --seed S``: failovers back and forth between two regions of three nodes, and pairs of faults.

Ends with exit code 1 where anything is lost that no list names, doubled, torn or out of order, where a client or a region does not get
on, or a node ends by itself; the folder with the logs of nodes is kept then. How long something took is printed, never judged.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import click
from confluent_kafka import KafkaException

from chaos.access.guard import Guard
from chaos.nodes.network import begin_inside, is_inside
from chaos.nodes.plan import INSIDE_FAULTS, Fault
from chaos.options import words_of
from chaos.regions.figures import lines, summary
from chaos.regions.plan import BLOWS, Kind, rounds
from chaos.regions.play import RegionsDrill
from chaos.regions.stage import RegionsStage
from chaos.writers.fleet import CLIENTS, Fleet
from chaos.writers.java_program import JavaMissingError, fetched
from chaos.writers.writer import TOPIC
from region_broker.client import ACROSS_REGIONS
from region_broker.workbench.cluster_plan import ClusterError
from region_broker.workbench.node_http import ApiError
from region_broker.workbench.stage import StageError

_EPILOG = """\b
Examples:
  python -m chaos.regions --rounds 4
  python -m chaos.regions --rounds 50 --kinds failover --seed 7 -o json
  python -m chaos.regions --rounds 12 --seed 61 --kinds failover,pair --secure
  python -m chaos.regions --rounds 10 --kinds pair --clients confluent,aiokafka
  python -m chaos.regions --rounds 25 --kinds pair --faults kill,cut,full,eio
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", default=1, show_default=True, help="What is drawn from.")
@click.option("--rounds", "count", default=20, show_default=True, help="How many.")
@click.option(
    "--kinds",
    default="failover,pair",
    show_default=True,
    help="Of which kinds, with commas.",
    callback=words_of([kind.name.lower() for kind in Kind]),
)
@click.option(
    "--faults",
    default=",".join(each.name.lower() for each in BLOWS),
    show_default=True,
    help=f"What pairs are made of, with commas: {', '.join(each.name.lower() for each in Fault)}. Cut and full need root, or unshare.",
    callback=words_of([fault.name.lower() for fault in Fault]),
)
@click.option(
    "--clients",
    default=",".join(CLIENTS),
    show_default=True,
    help="Which write, with commas.",
    callback=words_of(CLIENTS),
)
@click.option(
    "--writers", default=1, show_default=True, help="Transactional producers of each client."
)
@click.option(
    "--switches",
    default=0.2,
    show_default=True,
    help="After which share of the rounds a planned switch follows.",
)
@click.option(
    "--minutes",
    type=float,
    default=None,
    help="After so many no round begins any more; no limit if not given.",
)
@click.option("--secure", is_flag=True, help="TLS, logins, ACLs and a sealed topic; access changes meanwhile.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the folder of a good drill, too.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="How to print the summary; rounds are told on standard error then.",
)  # fmt: skip
def main(  # noqa: PLR0913 -- one for each option
    *, seed: int, count: int, kinds: list[str], faults: list[str], clients: list[str], writers: int, switches: float,
    minutes: float | None, secure: bool, keep: bool, output: str,
) -> None:  # fmt: skip
    """Play a drill of regions: in half of the rounds the primary region is killed as a whole, with a node already dead on either side."""
    wanted = [Fault[each.upper()] for each in faults]
    if not is_inside() and set(wanted) & set(INSIDE_FAULTS):
        if "java" in clients:
            fetched()  # the drill's own network reaches no registry
        begin_inside("chaos.regions", sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix=f"tidemark-regions-{seed}-"))
    stage = RegionsStage(seed, folder / "cluster", wanted, secure=secure)
    stage.on_stderr = output == "json"
    stage.tell(f"seed {seed}, {count} rounds, in {folder}")
    try:
        fleet = Fleet(
            stage.cluster.bootstrap, Random(seed), folder, clients=clients, count=writers,
            config=ACROSS_REGIONS, doors=stage.doors,
        )  # fmt: skip
    except JavaMissingError as error:
        raise click.ClickException(str(error)) from error
    guard = None if stage.doors is None else Guard(
        stage.doors, stage.cluster, Random(seed), topic=TOPIC, tell=stage.tell, blame=stage.blame
    )  # fmt: skip
    drill = RegionsDrill(stage, fleet, guard)
    try:
        drill.set_up()
        planned = rounds(seed, count, [Kind[each.upper()] for each in kinds], switches, wanted)
        drill.play(planned, minutes)
    except (StageError, ClusterError, ApiError, KafkaException, OSError) as error:
        stage.blame(f"the drill could not go on: {error!r}: {stage.state()}")
    finally:
        drill.tear_down()
    _print(_document(seed, folder, drill), output)
    if stage.anomalies:
        sys.exit(1)
    if not keep:
        shutil.rmtree(folder)


def _document(seed: int, folder: Path, drill: RegionsDrill) -> dict[str, Any]:
    """Return what is printed."""
    counts, journal = drill.verdict.counts, drill.fleet.journal
    return {
        "seed": seed,
        "rounds": len(drill.played),
        "failovers": sum(each.acting_after_s is not None for each in drill.played),
        "switches": drill.switches,
        "committed": sum(map(len, journal.acked_now().values())),
        "torn": counts.get("TORN", 0),
        "doubled": counts.get("DUPLICATE", 0),
        "out_of_order": counts.get("OUT_OF_ORDER", 0),
        "lost": drill.verdict.gone,
        "listed": drill.verdict.listed,
        "lists_that_shrank": drill.stage.shrunk,
        **({} if drill.guard is None else {"access": drill.guard.summary()}),
        "anomalies": drill.stage.anomalies,
        "folder": str(folder),
        **summary(drill.played),
    }


def _print(document: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(document, indent=2))
        return
    for line in lines(document):
        click.echo(line)
    names = (
        "rounds",
        "failovers",
        "switches",
        "committed",
        "torn",
        "doubled",
        "out_of_order",
        "lost",
        "listed",
        "lists_that_shrank",
    )
    click.echo(", ".join(f"{name.replace('_', ' ')} {document[name]}" for name in names))
    if "access" in document:
        click.echo(document["access"])
    if document["anomalies"]:
        click.echo(
            f"\nseed {document['seed']}: {len(document['anomalies'])} anomalies; everything is in {document['folder']}"
        )
    else:
        click.echo(f"\nseed {document['seed']}: nothing wrong")


if __name__ == "__main__":
    main()
