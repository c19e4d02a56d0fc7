"""`tidemark topic` and `tidemark group`."""
