"""Replication controllers: keep N copies of a pod on eligible nodes (p2 ``pkg/rc``)."""
