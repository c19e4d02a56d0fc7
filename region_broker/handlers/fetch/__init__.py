"""Fetch, and looking up offsets by time and by leader epoch.

Begin in `fetch` (sessions, and when a request is answered), then `reading` (its partitions: looked at, waited for, read).
May import: `dispatch`; no other room of handlers.
"""
