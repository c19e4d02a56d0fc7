"""The ledgers over partitions, and the markers they order."""
