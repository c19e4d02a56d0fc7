"""tidemarks."""
