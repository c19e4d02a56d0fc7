"""Sealed segments looked at again: what order they come in, what is wrong with one, and how it is written anew.

All but `order` runs in a thread, on files that do not change. The driver is `partitions.scrubber`; who fetches what was
lost is `partitions.mending`.
"""
