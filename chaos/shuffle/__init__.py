"""Random sequences of what operators, networks and disks do to regions, judged by what clients saw.

Begin in `plan`, which draws a sequence, and `play`, which carries it out. May import the public client, the workbench and its
neighbours in `chaos`.
"""
