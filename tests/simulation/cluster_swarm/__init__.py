"""Seeded lives of a region of three whole nodes, over the Kafka wire: what happens, and what is judged."""
