"""`tidemark txn`."""
