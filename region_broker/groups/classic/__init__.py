"""Consumer groups of the classic protocol: the leader assigns, all rejoin."""
