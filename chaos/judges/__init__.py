"""Judges of single workloads: pure functions from what clients did and saw to what is wrong with it, empty when nothing is.

A failover may cost what its word covers (`chaos.shuffle.judge.covered`): each judge is handed that as `Excuse`, and
asks it only of what is gone. `operator`, `knowledge` and `contacts` are
what a stage must ask, the same for processes and simulations. Begin in `numbered`. May import what stands in `chaos` beside
it and is a value (`history`, `story`): the simulation judges with them.
"""
