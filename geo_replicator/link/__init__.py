"""One mirror's link to the primary: what it decides, and what runs it.

This page is the contract between a link's cores and whoever drives them: `driver.Link` in a node,
`tests.property.histories_session` in tests. Begin in `core`, the pure machine; `driver` carries its effects out, `reaching` says which
tidemarks are reached. May import what stands in `geo_replicator` and the kernel.

Sessions: `core.LinkCore`
    1. One task steps it, and carries out the effects of a step in order; the next event is fed when they are.
    2. `SendFetch` is sent at once, without waiting for its answer. Answers are taken in the order in which they were asked
       for; each is appended whole, or the session ends, before the next is looked at. `Fetched` says what was appended, not
       what is durable: a mirror shows nothing by it.
    3. `ShowHistory` names what is durably reached here, and `HistoryShown` comes when all of it was compared: nothing is
       asked for, copied, cut or deleted before (T33).
    4. `HandOverDivergence` is answered with where the logs end afterwards, when their tails are synced in quarantine. The
       core never cuts (T23).
    5. `AwaitTidemarkToDelete` and `AwaitTidemarkToShrink` are kept for `reaching`, and carried out there (T15); `LogsReconciled`
       goes to its frontier.
    6. Whatever fails in the session is `LinkBroken`: disconnect, then wait for the pause it names, with jitter. What fails at
       one log, or one topic, halts that.
    7. After a session everything is checked again: nothing of it counts but what was appended.

Reaching: `geo_replicator.frontier.Frontier`, in `reaching.Reaching`
    1. `seeded` for each log before its high watermark is told; then what the tidemark reached names and is not here
       (`absent`); then every tidemark above it by `observe`, in the ledger's order, each once.
    2. `advanced` tells durable ends only. `reconciled` is told of logs that were checked under this session's region epoch,
       and `unreconcile` when it ends (T23).
    3. For a new `complete`: topics grow first (T15), then the point is stored and synced, with the ends that are to be
       shown; then `persisted`; then readers are shown the whole cut in one step; then logs may be deleted below it. In this
       order and no other: what a reader has seen is there after any crash (T16, T17).
    4. A fact that was being stored while the link was cancelled counts if it is stored (`end`).
    5. Topics that the primary has no more go once a tidemark past their deletion is reached, not before.
"""
