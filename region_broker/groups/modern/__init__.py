"""Consumer groups of the new protocol (KIP-848): the coordinator assigns, members reconcile.

Begin in `heartbeat`; the group is the replay of its records (`state`). May import what stands in `groups`, and the classic
group where members of both protocols meet.
"""
