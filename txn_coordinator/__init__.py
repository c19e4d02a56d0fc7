"""Decides transactions: a pure core for each shard of the transaction ledger, and one asyncio driver around them.

This page is the contract between a core (`core.TxnCoordinatorCore`) and whoever drives it. The node's driver is
`driver.TransactionCoordinator`; the tests' is `CoreFixture`, in a hundred lines. Begin in `core`
and `transitions`. May import: `idempotency`; asyncio only in the driver's parts.

What there is
    Events (`events`) go in by `core.step`; effects (`effects`) come out; `core.view` answers questions and changes
    nothing; `core.connections` says whether a TV1 client's request came in order; `core.limit_timeouts` says which
    time-outs are taken from then on, at any time but within a step. There is no other way in. The parts of a core
    (`shard/`) are not for drivers: `table` has the entries, `progress` moves them, `decisions` writes their next record,
    and a module for each kind of request has its rules.

Loading a shard
    1. Make a new core. A core that was resigned or that failed is never used again: its callbacks are deaf (C23).
    2. `replay_whole_from`, then `replay` every record, in the ledger's order. `LedgerCorrupt`: serve nothing from here.
    3. Step `TimersRestarted` (G7).
    4. Append a record of the own leader epoch, and wait until it is below the high watermark, before any event that
       decides (B3). A takeover steps `EnterRound` for that; any other load appends the current ROUND again.
       Where a planned switch ended, with `PairsInherited`: the pairs of the drained region are in force from then on (T22).
    5. A takeover steps `MarkersDeferred(True)` before it decides what to abort, and `MarkersDeferred(False)` when all of
       that is durable (T21).
    6. Step `MarkersResumed(orphans=False)`; when none of these markers is tried any more, `MarkersResumed(orphans=True)`.

A step
    1. Only one thread of control steps a core, and a step is never begun within another one.
    2. `now_ms` never goes back; `wall_ms` may.
    3. Whatever may take a producer id (InitProducerId, EndTxn under TV2, every abort) finds one in stock:
       `view.spare_id_count` is above the number of such events that are under way; `ProducerIdsGranted` fills it.
    4. Carry out the effects in order. Nothing is awaited between the step and the assignment of ledger positions:
       records of one step stand in the ledger before those of the next, and the round that a decision is stamped with
       is the one that the ledger has before it (T2). Writing them out together, later, is allowed; in another order is not.

The effects, and what each owes in return
    `AppendPairs`                       Nothing: it goes out before the first answer (step 4 of loading).
    `AppendRecord`, `AppendTombstone`   `RecordDurable`, once, when it is below the high watermark, in the ledger's order;
                                        none if the record is not to be reported.
    `AppendRound`                       `RoundAppended` with its offset; it opens a batch of its own (logs are cut there).
    `Answer`                            Nothing. It is given in the step that made it true: what it says is durable, so it
                                        may leave at once, and may be lost with its connection. One for each request.
    `Held`                              `HoldExpired`, when the request has waited as long as it may. A request that is
                                        parked twice says so twice; its time runs from the first.
    `SendMarkers`                       `MarkerConfirmed` for each partition that has the marker or is gone. They are tried
                                        for ever; until then the transaction is not complete.

What may be repeated
    Markers and their confirmations (T6), `EnterRound` and `ReleaseRound`, `HoldExpired`, `MarkersResumed`, and questions.
    `RecordDurable` and `ProducerIdsGranted` may not. A client's request that is repeated is a new one.

What may fail
    An append that failed may or may not be in the ledger: answer what waits with UNAVAILABLE, drop the core, load again.
    A crash at any point is a load of a prefix of the ledger that holds all that was answered.

Not here: Kafka's numbers and frames (region_broker.handlers), partitions, groups and files (region_broker).
"""
