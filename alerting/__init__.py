"""Telling humans: an alert, a router, de-duplication and the sinks."""
