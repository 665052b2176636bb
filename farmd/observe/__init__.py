"""Observability of a process: logs, metrics, progress of its loops."""
