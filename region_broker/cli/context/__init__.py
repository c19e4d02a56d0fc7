"""Named clusters: addresses that commands take when none are given, and who asks there.

Begin in `store`. May import the command line's output, what an address is (`workbench.node_http`), and as whom to ask (`workbench.credentials`).
"""
