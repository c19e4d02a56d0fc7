"""The journal: one file per node that makes small appends of many logs durable with one sync."""
