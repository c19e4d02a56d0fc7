"""Drills: failovers over three regions, timed from the side of transactional clients."""
