"""Tidemarks published at home and reached at a mirror."""
