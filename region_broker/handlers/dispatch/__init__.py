"""From a frame to the handler of its API and back: `dispatcher`, and what all handlers share.

Begin in `dispatcher`; `registry` says what an API is, `services` what handlers are given. Imports no handler.
"""
