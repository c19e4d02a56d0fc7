"""A plugin of pytest: hypothesis tries few examples, always the same ones, and keeps nothing."""

from hypothesis import settings

settings.register_profile(
    "mutants", max_examples=30, derandomize=True, database=None, deadline=None
)
settings.load_profile("mutants")
