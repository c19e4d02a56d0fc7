"""Topics: metadata, making, growing and deleting them, their configs, and deleting records."""
