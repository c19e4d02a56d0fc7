"""datadriven."""
