"""Client quotas (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612): who has which limit, how far it is used up, how long to wait.

Begin in `throttles`; `entities` says whose limit counts. May import `security.access`. Pure: the time is handed in. Per node: each one counts what it serves itself.
"""
