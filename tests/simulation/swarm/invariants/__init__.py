"""What must hold at every moment of a simulated life: the rules as pure functions (`rules`), and who looks when (`watch`)."""
