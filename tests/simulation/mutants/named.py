"""The mutants: each takes one rule out of the product, and names the scene that must notice it and what it says then.

INV-MUT1  noticed is only what shows as the violation that is expected; the same scene is clean without the edits
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.simulation.mutants.patch import Edit, edited
from tests.simulation.mutants.scenes import SCENES, play_scene


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` is what the edits take out, `scene` who notices it, and `expected` a pattern of what is said then."""

    name: str
    rule: str
    scene: str
    expected: str
    edits: tuple[Edit, ...]


def played(mutant: Mutant, scene: str = "") -> tuple[str, ...]:
    """Return what the judges say of a mutant in its scene; raises DoesNotApply, and whatever is no judgement."""
    with edited(mutant.edits):
        return play_scene(SCENES[scene or mutant.scene]).violations


def caught(mutant: Mutant, said: tuple[str, ...]) -> bool:
    """Return whether what was expected is among what is said."""
    return any(re.search(mutant.expected, each) for each in said)


@cache
def clean(scene: str, say: Callable[[str], None] | None = None) -> tuple[str, ...]:
    """Return what the judges say of a scene without an edit: nothing."""
    return play_scene(SCENES[scene], say).violations


def _mutant(
    name: str, rule: str, scene: str, expected: str, *edits: tuple[str, str, str]
) -> Mutant:
    return Mutant(name, rule, scene, expected, tuple(Edit(*edit) for edit in edits))


MUTANTS: Final = (
    _mutant(
        "a-retry-is-not-known",
        "C2",
        "power goes",
        "a producer is refused",
        (
            "idempotency.window:BatchWindow.find",
            "if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:",
            "if False:",
        ),
    ),
    _mutant(
        "a-retry-is-written-again",
        "C2",
        "power goes",
        "doubled",
        (
            "idempotency.partition_state:PartitionState._judge_known",
            "return Judgement(Verdict.DUPLICATE, original.base_offset, original.timestamp_ms)",
            "return FRESH",
        ),
    ),
    _mutant(
        "a-window-of-one",
        "C2",
        "power goes",
        "a producer is refused",
        (
            "idempotency.window:BatchWindow.push",
            "if len(self._batches) > BATCHES_TO_RETAIN:",
            "if len(self._batches) > 1:",
        ),
    ),
    _mutant(
        "new-epoch-keeps-sequences",
        "C4",
        "power goes",
        "INV-IVE4",
        ("idempotency.producer_state:ProducerTable._entry_at", "entry.window.clear()", "pass"),
    ),
    _mutant(
        "readers-see-open-transactions",
        "C36",
        "power goes",
        "shown although it was aborted",
        (
            "region_broker.partitions.parts.sight:Sight.last_stable_offset",
            "stable = state.last_stable_offset(bound)",
            "stable = bound",
        ),
    ),
    _mutant(
        "aborted-transactions-are-not-named",
        "C38",
        "power goes",
        "ABORTED_READ|although it was aborted",
        (
            "region_broker.partitions.parts.reader:PartitionReader.fetch",
            "aborted = self._reads.aborted_in(offset, next_offset, sight.visible_end, wait=wait)",
            "aborted = []",
        ),
    ),
    _mutant(
        "mirror-shows-its-high-watermark",
        "T17",
        "the primary lost",
        "gone without a word.*plain",
        (
            "region_broker.partitions.parts.sight:Sight.visible_end",
            "return max(min(self.shown_cut_offset, high_watermark), self.log_start_offset)",
            "return high_watermark",
        ),
    ),
    _mutant(
        "mirror-shows-each-log-by-itself",
        "T17",
        "mirror restarts",
        "torn in the view of mirror",
        (
            "region_broker.region.mirror.mirror_view:MirrorView._whole_ends",
            "ends = whole_cut(logs)",
            "ends = {key: log.stable_offset for key, log in logs.items()}",
        ),
    ),
    _mutant(
        "one-partition-gets-no-marker",
        "C28",
        "power goes",
        "not within .* all is decided",
        (
            "region_broker.ledgers.marker_channel:PartitionMarkerChannel._write_to",
            "partition = self._partitions.get(tp.topic, tp.partition)",
            "partition = self._partitions.get(tp.topic, tp.partition)\n    if tp.partition == 3:\n        for marker in markers:\n            marker.order.listener.marked(marker.order, tp, MarkerResult.DONE)\n        return",
        ),
    ),
    _mutant(
        "quarantine-keeps-nothing",
        "T20",
        "the primary lost",
        "gone and not named by losses",
        (
            "region_broker.region.failover.log_surgery:_cut_one",
            "moved = await quarantine.move_in(msgspec.structs.replace(provenance, first_offset=first), read)",
            "moved = provenance",
        ),
    ),
    _mutant(
        "every-marker-aborts",
        "C28",
        "power goes",
        "gone without a word",
        (
            "region_broker.ledgers.marker_channel:_batch",
            "ControlType.COMMIT if order.commit else ControlType.ABORT",
            "ControlType.ABORT",
        ),
    ),
    _mutant(
        "a-commit-is-answered-before-it-is-durable",
        "C20",
        "power goes",
        "gone without a word|TORN",
        (
            "txn_coordinator.shard.end_requests:EndRequests._end",
            "self._progress.prepare(entry, target, (answer,))",
            "self._progress.prepare(entry, target)\n        self._step.do(answer)",
        ),
    ),
    _mutant(
        "every-marker-commits",
        "C28",
        "power goes",
        "ABORTED_READ|although it was aborted|has too much",
        (
            "region_broker.ledgers.marker_channel:_batch",
            "ControlType.COMMIT if order.commit else ControlType.ABORT",
            "ControlType.COMMIT",
        ),
    ),
    _mutant(
        "staged-offsets-never-count",
        "C35",
        "power goes",
        "has too much",
        (
            "region_broker.ledgers.marker_channel:PartitionMarkerChannel._notify_groups",
            "order.producer_id, order.commit)",
            "order.producer_id, False)",
        ),
    ),
    _mutant(
        "a-start-forgets-producers",
        "C9",
        "power goes",
        "INV-IVE5",
        (
            "region_broker.log.replay:_read_window",
            "state.apply(header, marker)",
            "state._end_offset = header.next_offset",
        ),
    ),
)
