"""The journal: one file per node that makes small appends of many logs durable with one sync.

Begin in `writer`; `blocks` is its layout, `replay` brings it back into the logs. May import `indexes`, `segment` and the disk's port.
"""
