"""Logins on the Kafka port (SASL): pure mechanisms, and the desk that runs them.

Begin in `desk.py`; each mechanism is a module of its own. Imports the ports, limits, metrics, and the rooms of `security`.
"""
