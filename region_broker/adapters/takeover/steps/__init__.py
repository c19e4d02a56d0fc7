"""The steps of a fail-over, and what they see of the regions."""
