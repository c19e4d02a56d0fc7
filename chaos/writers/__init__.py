"""Transactional producers of three clients that transfer and never stop: confluent-kafka, aiokafka and the Java client.

Begin in `fleet`. All write the same transfers and tell the same journal, so that one judge reads them all. May import its
neighbours in `chaos`.
"""
