"""What Kafka's tools ask of a broker beside topics: the cluster, disks, ACLs, quotas, telemetry.

Most answer the same at each time, as a region is one node without security yet.
"""
