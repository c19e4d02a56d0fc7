"""Consumer groups of the new protocol (KIP-848): the coordinator assigns, members reconcile.

Begin in `heartbeat`; the group is the replay of its records (`state`); its shell is `modern_groups` beside this folder. May
import of `groups` names, ports and settings, and the classic group where members of both protocols meet; no shell.
"""
