"""Consumer groups over Kafka's protocol, both kinds of them, and their committed offsets."""
