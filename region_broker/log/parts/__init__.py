"""The parts of one partition's log: `log.partition_log` puts them together."""
