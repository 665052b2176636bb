"""Artifacts: fetched before a start, while the former workload still serves, into a cache by checksum.

``rules`` judges sources, ``download`` asks a server, ``sandbox`` copies and unpacks in a process of its own,
``cache`` keeps what was fetched, and ``views`` shows it to a workload.
"""
