"""HTTP for operators and scrapers: health, metrics, regions, transactions, verdicts.

Begin in `app`; each `routes_` module has its routes in its first lines, and what it asks of the node is in `ports`. May
import: `handlers`, `partitions`, `wire` and below; not `region`.
"""
