"""Patterns of topics: their syntax, and what they stand for.

Begin in `resolver`; `regex_syntax` reads a pattern, `topic_regex` matches in linear time. May import the ports of `groups`.
"""
