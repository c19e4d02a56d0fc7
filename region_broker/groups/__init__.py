"""Consumer groups: their members, their generations, and the offsets that they commit.

Begin in `coordinator`, which sends each request where it belongs: `classic_groups` (the leader assigns) or `modern_groups`
(KIP-848), each the shell of the folder of its name; `offset_service` keeps offsets, in transactions too. What groups need
of the node is in `ports`. May import: `wire.cooperative_yield`, `limits`, and the pure packages.
"""
