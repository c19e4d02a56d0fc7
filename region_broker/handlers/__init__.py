"""Kafka's APIs, one file each: what a request means, and which of Kafka's error numbers an outcome is.

Begin in `dispatch.dispatcher` (from a frame to its answer) and `apis` (which there are). Only here are error numbers
known. May import: `partitions`, `controller`, `groups`, `log`, `wire`, and the coordinator's ports.
"""
