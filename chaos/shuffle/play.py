"""One sequence from start to verdict.

    regions, topics, clients | actions | operator settles | all clients get on | clients end | read back | judge

Every wait ends; what does not come about in time is an anomaly.
"""

import time
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from chaos.checker import Kind as Wrong
from chaos.checker import check
from chaos.history import History, seen
from chaos.plain_producers import PLAIN_TOPIC
from chaos.readers import read_all
from chaos.shuffle.clients import TOPICS, Clients
from chaos.shuffle.judge import judge
from chaos.shuffle.plan import Action, draw
from chaos.shuffle.readiness import ReadinessWatch
from chaos.shuffle.settling import settle
from chaos.shuffle.stage import Stage
from chaos.soak_judge import few
from chaos.story import Place
from chaos.transfers import TOPIC as ACCOUNTS_TOPIC
from region_broker.workbench import stage as demo_stage

PROGRESS_S: Final = 40.0
ENDING_S: Final = 30.0
MIRRORED_S: Final = 30.0
READS_MAX: Final = 6
READ_AGAIN_S: Final = 1.0
_IN_EVERY_HISTORY: Final = frozenset(
    {Wrong.TORN, Wrong.DUPLICATE, Wrong.WRONG, Wrong.INVENTED, Wrong.ABORTED_READ, Wrong.SUM,
     Wrong.OUT_OF_ORDER}
)  # fmt: skip


def play(seed: int, regions: int, folder: Path) -> list[str]:
    """Play the sequence of `seed`; return its anomalies."""
    stage = Stage(folder, regions, seed)
    actions = draw(seed, stage.names)
    bootstraps = {name: stage.cluster.place(name).bootstrap for name in stage.names}
    clients = Clients(bootstraps, folder, seed)
    readiness = ReadinessWatch({name: stage.cluster.place(name).http_port for name in stage.names})
    try:
        stage.set_up()
        readiness.start()
        clients.create_topics(stage.names[0])
        clients.start()
        _play(stage, clients, readiness, actions)
    finally:
        clients.stop_reading(ENDING_S)
        stage.tear_down()
    _read_logs(stage)
    return stage.anomalies


def _play(stage: Stage, clients: Clients, readiness: ReadinessWatch, actions: list[Action]) -> None:
    stuck = clients.await_progress(PROGRESS_S)
    if stuck:
        stage.blame(f"before anything happens, these get nothing through: {stuck}")
    for action in actions:
        stage.play(action)
    stage.tell("the operator settles it")
    settled = settle(stage)
    stage.story.refusals = readiness.stop()
    for each in stage.story.refusals:
        stage.tell(
            f"  {each.region} was not ready for {each.to_s - each.from_s:.1f} s: {each.reasons}"
        )
    if not settled:
        clients.stop_writing(ENDING_S)
        return
    stage.tell("all clients are to get on")
    if stuck := clients.await_progress(PROGRESS_S):
        stage.blame(f"these get nothing through although all is well: {stuck}")
    if hanging := clients.stop_writing(ENDING_S):
        stage.blame(f"these do not end: {hanging}")
    if not _read_back(stage):
        return
    clients.stop_reading(ENDING_S)
    stage.end_separations()
    stage.story.sightings = clients.sightings()
    counts = {name: len(places) for name, places in stage.story.final.items()}
    stage.tell(
        f"{len(stage.story.sightings)} sightings, at the end {counts}, words {len(stage.story.words)}"
    )
    for anomaly in judge(stage.story, PLAIN_TOPIC):
        stage.blame(anomaly)
    _judge_transfers(stage, clients)
    _judge_producers(stage, clients)


def _read_back(stage: Stage) -> bool:
    """Return whether all regions could be read to the end."""
    views = {name: stage.view(name) for name in stage.names}
    [acting] = [name for name, view in views.items() if view is not None and view["acting"]] or [""]
    try:
        for _ in range(READS_MAX):
            for name in stage.names:
                if name != acting:
                    demo_stage.wait_mirrored(stage.cluster, acting, name, MIRRORED_S)
            stage.story.final = {name: _read(stage, name) for name in stage.names}
            if len(set(stage.story.final.values())) == 1:
                break
            # Ends are copied before the tidemark that shows them: a difference that stays is one.
            time.sleep(READ_AGAIN_S)
    except (demo_stage.StageError, KafkaException, OSError) as error:
        stage.blame(f"cannot be read back: {error}")
        return False
    stage.story.note_losses(
        loss for name in stage.names for loss in demo_stage.losses(stage.cluster, name)
    )
    return True


def _read(stage: Stage, name: str) -> frozenset[Place]:
    return frozenset(
        Place(r.topic, r.partition, r.offset, r.value.decode())
        for r in read_all(stage.cluster.place(name).bootstrap, TOPICS)
    )


def _judge_transfers(stage: Stage, clients: Clients) -> None:
    final = {
        name: [
            seen(p.partition, p.offset, p.value.encode())
            for p in sorted(places)
            if p.topic == ACCOUNTS_TOPIC
        ]
        for name, places in stage.story.final.items()
    }
    found = check(History(list(clients.journal.attempts), final))
    kinds = {kind.name for kind in _IN_EVERY_HISTORY}
    for anomaly in few("transfers", [f"{a.name} {a.detail}" for a in found if a.name in kinds]):
        stage.blame(anomaly)


def _judge_producers(stage: Stage, clients: Clients) -> None:
    """Where no word was given, no producer has a reason to begin anew."""
    faults = clients.plain.faults()
    if stage.story.words or stage.story.damages:
        for fault in faults:
            stage.tell(f"  {fault}")
    else:
        for fault in few("without a word", faults):
            stage.blame(fault)


def _read_logs(stage: Stage) -> None:
    for name in stage.names:
        log = stage.cluster.data_dir(name) / "node.log"
        if "Traceback" in log.read_text(errors="replace"):
            stage.blame(f"a traceback in {log}")
