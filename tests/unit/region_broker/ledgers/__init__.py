"""ledgers."""
