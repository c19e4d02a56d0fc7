"""What a start does with a log: its files as they were left, checked, cut, made durable and taken in."""
