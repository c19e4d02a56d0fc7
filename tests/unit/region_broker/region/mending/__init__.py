"""Tests of how nodes and regions give each other what a disk has lost."""
