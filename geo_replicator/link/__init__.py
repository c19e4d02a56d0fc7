"""One mirror's link to the primary: what it decides, and what runs it."""
