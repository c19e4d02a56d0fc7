"""Whether the simulated runs bite: rules taken out of the product one at a time, and the scene that must notice."""
