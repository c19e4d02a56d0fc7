"""Commands that look at a node and its files from outside, and change nothing."""
