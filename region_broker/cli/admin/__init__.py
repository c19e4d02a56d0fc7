"""`tidemark topic` and `tidemark group`: administration over Kafka's protocol.

Begin in `topic`. May import the command line's own parts (`output`, `kafka`) confluent-kafka, and the table of topic
configs (`controller.topic_configs`); asks nodes only over the network.
"""
