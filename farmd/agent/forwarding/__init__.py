"""Sends what pods write to journald and to syslog servers, from the files that their shims keep.

The files are the buffer: a destination that is slow or gone delays no workload. What was rotated away before
it was sent is lost, and counted.
"""
