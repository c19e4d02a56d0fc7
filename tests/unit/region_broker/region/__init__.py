"""region."""
