"""What segments prove: ledger facts, and the rows that engines move.

Begin in `rows`. May import `plan`, `segments` and the kernel's codecs; judges nothing.
"""
