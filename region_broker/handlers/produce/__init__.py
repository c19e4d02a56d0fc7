"""Produce: one request whole, in one step of the loop, or in pieces where it has many batches or must wait.

Begin in `produce` (the API), then `pipeline` (the two runs), `batches` (the rules of a batch) and `wait` (from an appended
batch to the answer); `errors` has each verdict as Kafka's number. May import: `dispatch`; no other room of handlers.
"""
