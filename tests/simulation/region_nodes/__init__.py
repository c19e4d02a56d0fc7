"""Raft groups over peer ports in the simulated network: `play` plays a seed, `judged` tells the judge of `tests.simulation.raft`."""
