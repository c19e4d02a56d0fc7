"""Unit tests of the controller of a region."""
