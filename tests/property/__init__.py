"""property."""
