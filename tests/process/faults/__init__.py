"""What docs/FAULTS.md says, played with real processes: the cases as data, the regions, and who judges them."""
