"""The configuration of a node: which keys there are, what each may be and why, and what they must be together.

Begin in `node_config`. `rules` and `relations` are pure. May import: the kernel and the names of `controller`'s topics. Not here:
what only the machine can tell (`node.start_checks`).
"""
