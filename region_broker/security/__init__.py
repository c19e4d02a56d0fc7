"""Who speaks, and what they may do: identities, credentials, ACLs, quotas, sealing. Pure rules beside the drivers of TLS.

Begin in `access` (what the metadata keep) and `identity` (who a connection speaks for). Every other room of `region_broker` above the ports may
look here; nothing here knows requests, logs or metadata commands. May import: `limits`, `metrics`, `ports`, `idempotency`.
"""
