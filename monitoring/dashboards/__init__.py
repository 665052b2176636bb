"""Grafana's dashboards: a file of YAML each, with its panels and what they ask Prometheus.

``python -m monitoring.dashboards`` writes ``monitoring/grafana/dashboards/*.json``, which are checked in; a
test keeps both equal. Each panel answers one question of somebody who was woken at night. Kinds of work come
from the registry.
"""
