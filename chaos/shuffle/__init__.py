"""Random sequences of what operators, sites and disks do to regions, judged by what clients saw."""
