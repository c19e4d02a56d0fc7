"""The small files beside a segment: indexes, epochs, snapshots, checkpoint."""
