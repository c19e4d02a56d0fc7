"""The other ways into a partition's log than Produce: transaction markers, and batches copied from another region.

Begin in `mirrored_batches`. May import the log and the kernel; the writer calls it (`parts.writer`).
"""
