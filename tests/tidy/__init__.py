"""tidy."""
