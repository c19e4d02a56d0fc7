"""region_broker."""
