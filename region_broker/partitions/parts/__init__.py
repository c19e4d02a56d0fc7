"""The parts of one partition: `partitions.partition` puts them together.

Begin in `writer`; `sight` says how far readers see. May import `log` and the kernel, and its neighbours in
`partitions` that are below it.
"""
