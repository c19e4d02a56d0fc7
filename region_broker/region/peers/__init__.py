"""What nodes of different regions say to each other, and the connections on which they do: `protocol`, `client`, `server`."""
