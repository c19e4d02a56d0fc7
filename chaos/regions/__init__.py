"""Two regions of three nodes that fail over again and again, with a node already dead on either side: ``python -m chaos.regions --rounds 20``.

Begin in `play`. Transactional producers of three clients write all along, and everything is read back and judged after each round.
May import the public client, the workbench and its neighbours in `chaos`.
"""
