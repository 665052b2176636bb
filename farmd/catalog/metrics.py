"""The metrics of the catalogue."""

from __future__ import annotations

from farmd.observe.metrics import Metric

METRICS: tuple[Metric, ...] = (
    Metric(
        "farmd_catalog_entries",
        "gauge",
        "Entries that this farm keeps in Consul's catalogue for services, by the status of their checks.",
        {"status": ("passing", "critical")},
    ),
    Metric(
        "farmd_catalog_changes_total",
        "counter",
        "Entries that this farm added to Consul's catalogue, changed there or removed.",
        {"change": ("added", "changed", "removed")},
    ),
    Metric(
        "farmd_catalog_drift_total",
        "counter",
        "Services whose entries in Consul's catalogue somebody else changed and this farm repaired.",
    ),
)
