"""The parts of one partition: `partitions.partition` puts them together."""
