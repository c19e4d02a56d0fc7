"""Fetch, and looking up offsets by time and by leader epoch. Begin in `fetch`."""
