"""Sealed segments looked at again: what order they come in, what is wrong with one, and how it is written anew.

Begin in `examining`. All but `order` runs in a thread, on files that do not change. May import what a log is made of; knows
neither the driver (`partitions.scrubber`) nor who fetches what was lost (`partitions.mending`).
"""
