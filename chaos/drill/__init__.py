"""Drills: failovers over three regions, timed from the side of transactional clients.

Begin in `play`. May import the public client, the workbench and its neighbours in `chaos`.
"""
