"""The parts of the node's driver: each carries out one thing for the cores, `txn_coordinator.driver` puts them together.

Begin in `shard_driver`, which appends what a core prepared and applies it once it is durable. May import asyncio and what
stands in `txn_coordinator` outside `shard/`; looks into no core.
"""
