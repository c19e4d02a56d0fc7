"""Real processes, real sockets, real disks."""
