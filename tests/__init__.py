"""Tests of everything, by kind: docs/TESTING.md says what each folder is for, and which to begin with."""
