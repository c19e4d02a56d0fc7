"""What segments prove, as tables: headers, markers, ledger facts, and the rows that engines move.

Begin in `rows`. May import `plan`, `scanner` and the kernel's codecs; judges nothing.
"""
