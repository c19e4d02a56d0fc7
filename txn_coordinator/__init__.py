"""Decides transactions: a pure core per ledger shard, and one asyncio driver around it."""
