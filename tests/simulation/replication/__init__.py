"""Seeded lives of a replica group of three members: the real cores on both sides, everything around them drawn from the seed."""
