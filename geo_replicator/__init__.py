"""Decides what crosses regions: rounds and tidemarks, what a mirror follows and shows, who acts, what was lost.

Begin in `cut_rounds` (when a tidemark is cut), `tidemark` (its record), `link.core` (what a mirror does next),
`frontier` (what it has reached), `failover` (the machine of a region) and `directory` (who may act). What drivers owe
these cores: docs/NOT_OBVIOUS.md. May import: `idempotency`. No I/O but in `link.driver`, through `ports`, and in
`reconciliation`, which reads files.
"""
