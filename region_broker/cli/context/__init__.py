"""Named clusters: addresses that commands take when none are given.

Begin in `store`. May import the command line's output, and what an address is (`workbench.node_http`).
"""
