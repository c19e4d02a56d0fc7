"""The snapshot of a partition's state that goes on changing: taken in pieces, encoded in any thread.

INV-SDR1  a draft encodes to the bytes of the state as it was in the step in which it was returned, whatever was applied or forgotten while it
         was taken, and since: what changes meanwhile is taken once more, in that last step
Fifty thousand producers take 80 ms and more to pack, which no event loop is to be held for; all else of a state does not change once it is
there, and is packed where the draft is encoded.

Not here: what a state holds (`partition_state`), its bytes (`snapshot_codec`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from idempotency.identity import ProducerId
from idempotency.pieces import Pieces
from idempotency.producer_state import ProducerTable
from idempotency.snapshot_codec import SnapshotContent, pack_around, pack_producer, size_around

PRODUCERS_AT_ONCE: Final = 1_000
"""How many producers are packed in one piece: 2 to 3 ms."""
ROUNDS_MAX: Final = 4
"""How often what has changed is taken in pieces again: then all that is left is taken at once, however much it is."""


@dataclass(frozen=True, slots=True)
class SnapshotDraft:
    """See the module's head. `content` names no producers: they are packed already."""

    content: SnapshotContent
    producers: Mapping[ProducerId, bytes]

    @property
    def size_bytes(self) -> int:
        """How many bytes `encode` returns."""
        return size_around(self.content) + sum(map(len, self.producers.values()))

    def encode(self) -> bytes:
        """Return the snapshot's bytes; in any thread."""
        return pack_around(self.content, [packed for _, packed in sorted(self.producers.items())])


def packed_in_pieces(table: ProducerTable) -> Pieces[dict[ProducerId, bytes]]:
    """Return each producer's bytes as of the step in which they are returned (INV-SDR1)."""
    packed: dict[ProducerId, bytes] = {}
    with table.watched() as changed:
        left = table.ids()
        for _ in range(ROUNDS_MAX):
            if len(left) <= PRODUCERS_AT_ONCE:
                break
            for start in range(0, len(left), PRODUCERS_AT_ONCE):
                _pack(table, left[start : start + PRODUCERS_AT_ONCE], packed)
                yield
            left = list(changed)
            changed.clear()
        _pack(table, left, packed)
    return packed


def _pack(
    table: ProducerTable, producer_ids: Iterable[ProducerId], packed: dict[ProducerId, bytes]
) -> None:
    for producer_id in producer_ids:
        entry = table.get(producer_id)
        if entry is None:  # it was forgotten meanwhile
            packed.pop(producer_id, None)
        else:
            packed[producer_id] = pack_producer(entry)
