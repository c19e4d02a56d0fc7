"""`tidemark demo`: a real workload over two regions, one of them killed, and the proof.

Begin in `run`. May import the workbench, where what it plays stands, and the command line's own parts.
"""
