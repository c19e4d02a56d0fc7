"""What a node refuses before it reads on: too many connections, too quickly, or writes where the disk is nearly full.

Begin in `connection_caps`; `disk_room` is asked by Produce and by whoever else writes for clients. May import: `limits`, and
the ports of clock and disk.
"""
