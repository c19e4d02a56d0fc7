"""`tidemark bench`: one file per kind of load, the command in `command`."""
