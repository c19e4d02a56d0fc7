"""ACLs over Kafka's APIs: what there is, what comes, what goes.

Begin in `acl_filters`, what the three share. A change goes through `Services.metadata`. What ACLs mean is in
`region_broker/security`. May import: `dispatch`, `topics`; no other room of handlers.
"""
