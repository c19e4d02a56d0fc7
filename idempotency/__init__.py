"""idempotency."""
