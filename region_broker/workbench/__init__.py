"""The workbench: nodes of a cluster on this machine, asked over HTTP, and transfers between accounts played over them.

What `tidemark demo`, `bench` and `dev` share with `chaos` and the tests of processes. It may import the public client and
the ports, and sees no node from inside: it starts processes and talks to them. Begin in `local_cluster`; `workload` is
what is played, `audit` what must be true afterwards.
"""
