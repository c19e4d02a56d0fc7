"""Consumer groups of the classic protocol: the leader assigns, all rejoin.

Begin in `group`, a pure machine; `coordinator` is its shell, with futures and the ledger. May import what stands in
`groups`.
"""
