"""From a frame to the handler of its API and back, and what all handlers share.

Begin in `dispatcher`; `registry` says what an API is, `services` what handlers are given. May import what is below the handlers; no handler.
"""
