"""Requests and answers as bytes: one bounded, incremental codec over kio's schemas, and the fast paths of hot APIs.

Begin in `requests` (in) and `answers` (out); `pieces` is what long work is cut into, `guard` what stands before kio. Nothing
here waits or knows what a field means. May import: `limits`, `idempotency`, public names of kio.
"""
