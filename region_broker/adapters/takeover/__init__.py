"""Fail-over carried out: journal, peers, cuts, quarantine, roles."""
