"""The rounds of all ledger shards, as the cut leader enters and releases them (T2, T3).

ROUND opens a batch of its own: a takeover cuts the ledger at L, and logs are cut between batches only.

Not here: when a round starts and closes (geo_replicator.cut_rounds), which markers it holds (`rounds.RoundGate`).
"""

from idempotency.identity import Round
from txn_coordinator import events as ev
from txn_coordinator.rounds import EnteredRound
from txn_coordinator.serving.loaded_shards import LoadedShards


class LedgerRounds:
    """Moves the served shards from round to round; holds no state of its own."""

    def __init__(self, shards: LoadedShards) -> None:
        """Take the shards."""
        self._shards = shards

    async def enter_round(self, round_: Round) -> dict[int, EnteredRound]:
        """ENTER{round}: return the answers of the shards that are in it, durably (T2).

        A shard that is past the round, or whose ledger failed, is missing from the answer.
        """
        shards = list(self._shards) if self._shards.active else []
        for shard in shards:
            if not shard.closed:
                shard.ledger.flush()
                shard.step(ev.EnterRound(round_))
                shard.ledger.flush()
        entered: dict[int, EnteredRound] = {}
        for shard in shards:
            ledger_offset = shard.view.round_offset
            if shard.closed or shard.view.round != round_ or ledger_offset < 0:
                continue
            if await shard.ledger.committed(ledger_offset):
                epoch = shard.coordinator_epoch
                entered[shard.index] = EnteredRound(shard.index, epoch, ledger_offset)
        return entered

    def release(self, round_: Round) -> None:
        """RELEASE{round}: the round is closed or abandoned, its COMMIT markers may go (T3)."""
        for shard in self._shards:
            if not shard.closed:
                shard.step(ev.ReleaseRound(round_))

    @property
    def held_decisions(self) -> int:
        """Number of decisions whose markers wait for a release (ask the cut leader for one)."""
        return sum(shard.view.held_count for shard in self._shards)
