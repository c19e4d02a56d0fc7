"""Who speaks, and what they may do: identities, credentials, ACLs, quotas, sealing. Pure rules beside the drivers of TLS.

Every other room of `region_broker` above the ports may look here; nothing here knows requests, logs or metadata commands.
Begin in `identity`. Imports `ports`, `limits` and `metrics` only.
"""
