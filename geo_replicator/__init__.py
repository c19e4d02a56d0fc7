"""Decides what crosses regions: rounds and tidemarks, what a mirror follows and shows, who acts, what was lost.

This page is the contract between the cores of this package and whoever drives them; a link's stands in `link`. Begin in
`cut_rounds` (when a tidemark is cut), `tidemark` (its record), `link.core` (what a mirror does next), `frontier` (what it
has reached), `failover` (the machine of a region) and `directory` (who may act). May import: `idempotency`. No I/O but in
`link.driver` and `link.reaching`, through `ports`, and in `reconciliation`, which reads files.

Rounds: `cut_rounds.RoundsCore` and `tidemark_writer.TidemarkWriter`
    One core and one writer for each term of a cut leader, both stepped by one task; others put events into its queue. The
    node's driver is `region_broker.region.tidemarks.cut_leader`, the model's `tests.model.primary`.

    1. `start` once. Carry out the effects of a step in order; the next event is fed when they are, but for `EnterRound`,
       which runs beside what follows.
    2. `RecordTerm` is durable (below the high watermark) before `TermRecorded`: nothing of a term leaves before (T1).
    3. `EnterRound` goes to all shards. `ShardEntered` comes once the shard's ROUND is durable, and carries its offset. A
       shard that fails says nothing: time gives the round up (T4).
    4. `ReleaseRound` is carried out before `CollectPositions` is begun: markers never wait for positions. What it releases
       may be released again.
    5. Positions come from logs whose high watermark has reached the start of their leader epoch (`Collection`), all under
       one version of the metadata, read after the round closed (T9). `PositionsCollected` when none is missing.
    6. `PublishTidemark`: `prepare` the record, append it, wait until it is durable, tell the writer by `published` where it
       lies, then `TidemarkDurable`. A mirror may be sent it from then on, not before (T10). An append that failed may
       have left a record: end the term, never prepare a second one in its place.
    7. Feed `TimePassed` at `wake_at_ms`; `now_ms` never goes back. Late events of other rounds may be fed.
    8. A driver that ends, for whatever reason, releases every round of its term (T4), and uses core and writer no more.

Failover: `failover.fold` and `failover.next_effect`
    The state is a value; a journal of events is all that is kept of it. One driver a region changes it
    (`region_broker.region.failover.driver`); whoever hears something (a hello, a promise asked for, an order) brings it an
    event, and reads the state.

    1. Fold the whole journal before anything else; one that is damaged starts nothing.
    2. An event is folded first: what the phase does not know (`IllegalTransition`) changes nothing. Where the state after it
       may not act, the gate for writes is closed. Then the event is appended and synced, then it becomes the state, then
       others hear of it. One event at a time. Whoever decided by an older state has its event dropped.
    3. Run the one effect that `next_effect` names. It ends in one event or none, may fail or be cancelled anywhere, and is
       run again from its beginning, after a restart too: it counts on nothing in memory that it did before. A state that
       changes cancels the effect of the old one.
    4. What must be durable before what is told: a promise, before it is answered (T24); the promises of the others, before
       the base is chosen (T25); the loss statement, before `CutChosen`; the entry of the lineage, before a log is cut by it;
       a log's tail, in quarantine, before the log is cut (T20); all cuts, before `LogsCut` or `Returned`; what is adopted,
       before `Adopted`.
    5. A region that promised answers when its gate is closed and its link has ended: what it claims, it does not exceed (T24).
    6. The gate opens in the last statement of the last step, if the state is still the one that the step was begun for.
"""
