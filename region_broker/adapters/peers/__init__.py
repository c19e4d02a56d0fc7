"""What regions say to each other, and requests that one carries for another."""
