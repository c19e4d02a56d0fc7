"""How many connections there may be, and how quickly they may come."""
