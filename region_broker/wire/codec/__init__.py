"""Requests and answers as bytes: one bounded, incremental codec over kio's schemas, and the fast paths of hot APIs.

Begin in `requests` (in) and `answers` (out); `guard` is what stands before kio; long work is cut into `Pieces`. Nothing
here waits or knows what a field means. May import: `limits`, `idempotency`, `wire.cooperative_yield`, public names of kio.
"""
