"""`tidemark produce` and `tidemark consume`: records in and out of files, pipes and terminals.

Begin in `produce`; `lines` says what a line is. May import confluent-kafka and the command line's own parts.
"""
