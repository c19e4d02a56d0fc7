"""The parts of one partition's log: `log.partition_log` puts them together.

Begin in `appender`; `durability` knows what is on stable storage, `trimmer` takes away at both ends. May import the rest of
`log`.
"""
