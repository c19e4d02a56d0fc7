"""The audit trail: who did what, from where, and what came of it, in a chain of records that shows tampering (ADR 62).

Begin in `trail`: the port, which everyone above may use. May import what `security` may; a node's own trail is `recorder` over `chain_files`; `chain` and `verifying` are pure,
and read by `tidemark audit` too. Not here: what is recorded of a command of the metadata (`controller.audited_commands`), of an HTTP
order (`http_api.audited_orders`), of a Kafka request (`handlers.dispatch`).
"""
