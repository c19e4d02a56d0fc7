"""Drills behind shut doors: TLS on every port, logins, ACLs, a sealed topic, and access that changes while nodes and regions are lost.

Begin in `guard`. May import the public client's security, the workbench and its neighbours in `chaos`.
"""
