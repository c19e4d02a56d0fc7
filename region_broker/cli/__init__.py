"""The command `tidemark`: one file per command, a folder where there are several of a kind.

Begin in `main`; `kafka` and `region_client` are how commands talk to nodes, `output` how they print. Imports of a command
are made when it is called, so that `tidemark --help` is quick. May import: every room.
"""
