"""Requests and answers as bytes: one bounded, incremental codec over kio's schemas, and the fast paths of hot APIs."""
