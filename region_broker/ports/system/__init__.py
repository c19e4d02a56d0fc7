"""The platform's ports on a real machine: Linux's clocks, entropy, files and sockets.

Begin in `disk`. May import the operating system, and the ports that it fulfils; only `node` makes them, and hands them in.
"""
