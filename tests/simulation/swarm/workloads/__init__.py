"""Workloads of which a seed has some: each a few clients, topics of their own, and a judge of what they saw.

Begin with `setting` (what a workload is) and `drawn` (which ones a seed has). The judges are in `chaos.judges`, so that
runs of real processes can use them, too.
"""
