"""Produce: one request in one turn of the loop, or in pieces where it has many partitions. Begin in `produce`."""
