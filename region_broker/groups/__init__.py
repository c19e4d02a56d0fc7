"""Consumer groups: their members, their generations, and the offsets that they commit.

Begin in `coordinator`, which sends each request where it belongs: `classic` (the leader assigns) or `modern` (KIP-848);
`offset_service` keeps offsets, in transactions too. What groups need of the node is in `ports`. May import:
`wire.cooperative_yield`, `limits`, and the pure packages.
"""
