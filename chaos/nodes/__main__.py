"""``python -m chaos.nodes --seed N --rounds M``: one node of three killed, paused or restarted, again and again, under load.

Ends with exit code 1 where anything is lost, doubled, torn or out of order, a client does not get on, or a node ends by itself;
the folder with its logs is kept then. Pauses are printed, never judged: how long one may take depends on the machine.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import click
from confluent_kafka import KafkaException

from chaos.access.guard import Guard
from chaos.nodes.clients import Load, NodesClients
from chaos.nodes.figures import table
from chaos.nodes.network import begin_inside, is_inside
from chaos.nodes.plan import INSIDE_FAULTS, PLAIN_FAULTS, Fault, Victim, rounds
from chaos.nodes.play import NodesDrill
from chaos.nodes.stage import NodesStage
from chaos.options import settings_of, words_of
from chaos.writers.fleet import CLIENTS
from chaos.writers.java_program import fetched
from chaos.writers.writer import TOPIC
from region_broker.workbench.cluster_plan import ClusterError
from region_broker.workbench.stage import StageError

_PLAIN: Final = ",".join(each.name.lower() for each in PLAIN_FAULTS)
_EPILOG = """\b
Examples:
  python -m chaos.nodes --seed 7 --rounds 20
  python -m chaos.nodes --seed 7 --rounds 9 --spread
  python -m chaos.nodes --rounds 12 --faults kill,restart --secure
  python -m chaos.nodes --faults cut,full,eio --rounds 18
  python -m chaos.nodes --faults kill --victims leader --clients java --rounds 10
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", default=1, show_default=True, help="What is drawn from.")
@click.option("--rounds", "count", default=20, show_default=True, help="How many faults.")
@click.option(
    "--faults",
    default=_PLAIN,
    show_default=True,
    help=f"Which, with commas: {', '.join(each.name.lower() for each in Fault)}. Cut, part and full need root, or unshare.",
    callback=words_of([each.name.lower() for each in Fault]),
)
@click.option(
    "--victims",
    default="leader,follower,quorum",
    show_default=True,
    help="Whose, with commas.",
    callback=words_of([each.name.lower() for each in Victim]),
)
@click.option("--tellers", default=3, show_default=True, help="Transactional producers.")
@click.option("--producers", default=2, show_default=True, help="Plain idempotent producers.")
@click.option(
    "--workers",
    default=2,
    show_default=True,
    help="Clients that read, process and write in a group.",
)
@click.option("--rows", default=30_000, show_default=True, help="What these have to read.")
@click.option(
    "--clients",
    default=",".join(CLIENTS),
    show_default=True,
    help="Of which clients there is a transactional writer and a reader, with commas.",
    callback=words_of(CLIENTS, or_none=True),
)
@click.option("--set", "settings", multiple=True, callback=settings_of, help="librdkafka's key=value for all clients.")  # fmt: skip
@click.option("--spread", "spreads", is_flag=True, help="Have partitions led by all nodes before each fault.")  # fmt: skip
@click.option("--secure", is_flag=True, help="TLS, logins, ACLs and a sealed topic; access changes meanwhile.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the folder of a good drill, too.")
def main(  # noqa: PLR0913 -- one for each option
    *, seed: int, count: int, faults: list[str], victims: list[str], tellers: int, producers: int, workers: int,
    rows: int, clients: list[str], settings: dict[str, str], spreads: bool, secure: bool, keep: bool,
) -> None:  # fmt: skip
    """Play a drill of nodes, and print what each kind of fault cost its clients."""
    wanted = [Fault[each.upper()] for each in faults]
    if not is_inside() and set(wanted) & set(INSIDE_FAULTS):
        if "java" in clients:
            fetched()  # the drill's own network reaches no registry
        begin_inside("chaos.nodes", sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix=f"tidemark-nodes-{seed}-"))
    stage = NodesStage(seed, folder / "cluster", wanted, secure=secure)
    load = Load(tellers, producers, workers, rows, clients)
    clients_ = NodesClients(stage.bootstrap, seed, folder, load, settings, stage.doors)
    guard = None if stage.doors is None else Guard(
        stage.doors, stage.cluster, Random(seed), topic=TOPIC, tell=stage.tell, blame=stage.blame
    )  # fmt: skip
    drill = NodesDrill(stage, clients_, spreads=spreads, guard=guard)
    stage.tell(f"seed {seed}, {count} rounds, in {folder}")
    planned = rounds(seed, count, wanted, [Victim[each.upper()] for each in victims])
    try:
        drill.set_up()
        drill.play(planned)
        drill.judge()
    except (StageError, ClusterError, KafkaException, OSError) as error:
        stage.blame(f"the drill could not go on: {error!r}")
    finally:
        drill.tear_down()
    for line in table(drill.clients.acked_s(), drill.played):
        click.echo(line)
    if guard is not None:
        click.echo(guard.summary())
    if stage.anomalies:
        click.echo(f"\nseed {seed}: {len(stage.anomalies)} anomalies; everything is in {folder}")
        sys.exit(1)
    click.echo(f"\nseed {seed}: nothing wrong")
    if not keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
