"""The small files beside a segment: indexes, epochs, snapshots, checkpoint.

Begin in `checked_file`, the frame of all of them. May import the disk's port and the kernel's codecs; each can be lost, and
is made again from the log.
"""
