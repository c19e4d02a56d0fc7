"""The parts of the node's driver: each carries out one thing for the cores, `txn_coordinator.driver` puts them together."""
