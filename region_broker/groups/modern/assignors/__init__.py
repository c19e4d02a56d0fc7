"""Who gets which partitions: pure functions."""
