"""Judges of single workloads: pure functions from what clients did and saw to what is wrong with it, empty when nothing is.

A failover may cost what its word covers (`chaos.shuffle.judge.covered`): each judge is handed that as `Excuse`, and
asks it only of what is gone. Begin in `numbered`. May import nothing but their neighbours: the simulation judges with them.
"""
