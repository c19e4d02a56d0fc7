"""Topics whose records are sealed at rest (`tidemark.encryption`): the form of a sealed batch, keys, and who has them.

Begin in `sealing` (what a node has); `sealed_batch` is the form, `data_keys` what batches are sealed with, `key_ring` the named keys and
their file, `key_sources` what unlocks them. May import: the kernel (ADR 61).
"""
