"""What a start does with a log: its files as they were left, checked, cut, made durable and taken in.

Begin in `opening`. May import the rest of `log`; runs before anybody else sees the log.
"""
