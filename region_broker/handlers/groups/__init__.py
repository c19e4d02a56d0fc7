"""Consumer groups over Kafka's protocol, both kinds of them, and their committed offsets.

Begin in `join_group` (the classic protocol) and `consumer_group_heartbeat` (KIP-848); `errors` has each verdict as Kafka's
number, and what several APIs share. What a group is and decides is in `region_broker/groups`. May import: `dispatch`; no
other room of handlers.
"""
