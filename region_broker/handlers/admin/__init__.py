"""What Kafka's tools ask of a broker beside topics: the cluster, disks, ACLs, quotas, telemetry.

Begin in `constant_answers`: as a region is one node without security yet, what is not there is a table. An answer that
looks at its request has a file of its own. May import `dispatch` and what is below it; no other room of handlers.
"""
