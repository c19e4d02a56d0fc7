"""Transactions over Kafka's protocol: producers' requests, markers, and what operators list and describe."""
