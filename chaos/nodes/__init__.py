"""The nodes of one region, lost one at a time under load: ``python -m chaos.nodes --seed 7 --rounds 20``.

Begin in `play`. Each round kills, pauses or restarts one node by its role; clients must get on by themselves, and at the end
everything is read back and judged. May import the public client, the workbench and its neighbours in `chaos`.
"""
