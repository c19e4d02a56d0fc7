"""What can happen to a node of a region of several, and is alike in lives of one region and of two: folders, disks, clocks."""
