"""`tidemark demo`: a real workload over two regions, one of them killed, and the proof."""
