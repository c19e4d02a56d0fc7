"""Answers as bytes: writers compiled from kio's response classes, filled from dicts."""
