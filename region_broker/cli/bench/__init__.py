"""`tidemark bench`: one file per kind of load.

Begin in `command`; `stage` starts what is measured, `figures` makes numbers of times. May import the workbench, the
wire's codec, with which it speaks as a client, and the command line's output.
"""
