"""One mirror's link to home: what it decides, and what runs it."""
