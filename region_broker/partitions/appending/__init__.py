"""The other ways into a partition's log than Produce: transaction markers, and batches copied from another region."""
