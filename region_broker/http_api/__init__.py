"""http_api."""
