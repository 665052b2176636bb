"""Grafana's dashboards, as functions that return their JSON.

``python -m monitoring.dashboards`` writes ``monitoring/grafana/dashboards/*.json``, which are checked in; a
test keeps both equal. Each panel answers one question of somebody who was woken at night. Kinds of work come
from the registry.
"""
