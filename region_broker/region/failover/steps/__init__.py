"""The effects of the failover machine (`effects`), and what stands beside it: disputes, given-up logs, folders without history.

Each step may run again after a crash and ends in at most one event. Begin in `effects`. May import what stands in `failover`.
"""
