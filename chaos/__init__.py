"""Faults against real processes: what clients wrote and read is judged, never how the nodes look inside.

Begin in `soak` (two regions for minutes or days), `shuffle` (folders damaged and swapped), `drill` (two failovers, timed) or
`nodes` (one region, its nodes lost one at a time); `judges` are pure and take histories, also those of the simulator. May import: `region_broker.client`, and
`region_broker.workbench`, which starts clusters and plays the demo's load.
"""
