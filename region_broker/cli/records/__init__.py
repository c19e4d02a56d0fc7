"""`tidemark produce` and `tidemark consume`: records in and out of files, pipes and terminals."""
