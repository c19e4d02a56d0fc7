"""The platform's ports on a real machine: Linux's clocks, entropy, files and sockets."""
