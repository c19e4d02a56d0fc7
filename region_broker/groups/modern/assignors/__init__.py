"""Who gets which partitions: pure functions. Begin in `assignment`. May import nothing else of ours."""
