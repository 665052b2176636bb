"""Alerts for people: the alert, the router, de-duplication and the sinks."""
