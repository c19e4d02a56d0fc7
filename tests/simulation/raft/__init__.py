"""The Raft core under faults, from one seed: `__main__` plays seeds, `judge` holds the rules, `mutants` shows that they bite."""
