"""A region of three nodes in memory: their controllers, a quorum that loses and delays, their logs and folders."""
