"""Every transaction, in both regions, against the ledger.

Begin in `check`; `judging` walks instances, `decisions` compares with what the ledger says. May import `evidence` and
`findings`; reads no file.
"""
