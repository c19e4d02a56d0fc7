"""A failover and the way back, carried out: `driver` keeps the machine of `geo_replicator.failover` durable in `journal` and runs
its effects, one coroutine each in `steps`; `answers` is what the other regions ask, `operations` what operators
order; `log_surgery` cuts, `quarantine_store` keeps.
Begin in `driver`. May import `role` and `peers` beside it; reaches logs through `region.ports`.
"""
