"""Seeded lives of two regions, of three whole nodes each or one of them of one: what happens, and what is judged (ADR 48)."""
