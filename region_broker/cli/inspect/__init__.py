"""Commands that look at a node and its files from outside, and change nothing.

Begin in `top` (a live node) or `log_dump` (its files). May import the log's readers, and nothing that writes.
"""
