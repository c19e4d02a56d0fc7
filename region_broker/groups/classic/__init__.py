"""Consumer groups of the classic protocol: the leader assigns, all rejoin.

Begin in `group`, a pure machine; its shell, with futures and the ledger, is `classic_groups` beside this folder.
May import of `groups` what says names, settings and verdicts; no shell.
"""
