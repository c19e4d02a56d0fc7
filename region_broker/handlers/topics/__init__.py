"""Topics: metadata, making, growing and deleting them, their configs, and deleting records.

Begin in `metadata` and `create_topics`; `config_resources` is what the three APIs of configs share. A change goes through
`Services.metadata`, never to a partition. May import: `dispatch`; no other room of handlers.
"""
