"""The table of metrics is closed, follows the naming rules and equals its documentation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from farmd.observe.metrics import markdown, table
from farmd.observe.recorder import Metrics, UnknownMetric

DOCS = Path(__file__).resolve().parents[3] / "docs/metrics.md"


def test_the_documentation_equals_the_table():
    assert DOCS.read_text().endswith(markdown())


def test_names_follow_the_conventions():
    for row in table():
        assert row.name.startswith("farmd_"), row
        assert row.name.endswith("_total") == (row.kind == "counter"), row
        assert not {"job", "instance", "id", "name", "node"} & row.labels.keys(), row
        assert row.help.endswith("."), row


def test_values_show_in_the_scrape():
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.count("farmd_lock_events_total", 2, event="claimed")
    metrics.set("farmd_build_info", 1, version="1.2.3")
    metrics.observe("farmd_txn_ops", 3)
    text = generate_latest(registry).decode()
    assert 'farmd_lock_events_total{event="claimed"} 2.0' in text
    assert 'farmd_build_info{version="1.2.3"} 1.0' in text
    assert 'farmd_txn_ops_bucket{le="4.0"} 1.0' in text
    assert "_created" not in text


def test_a_counter_is_exported_before_its_first_event():
    registry = CollectorRegistry()
    Metrics(registry)
    for row in table():
        samples = [
            s for family in registry.collect() for s in family.samples if s.name == row.name and s.value == 0
        ]
        if row.kind == "counter" and not row.name.endswith("_requests_total"):
            assert len(samples) == math.prod(map(len, row.labels.values())), row.name
        elif row.kind == "counter":
            assert samples == []


@pytest.mark.parametrize("role", ["farm", "agent"])
def test_a_process_exports_the_metrics_of_its_role_alone(role):
    registry = CollectorRegistry()
    metrics = Metrics(registry, role)
    for row in table():
        if row.role in (role, "both") and row.kind == "gauge":
            metrics.set(row.name, 1, **{label: (values or ("x",))[0] for label, values in row.labels.items()})
    text = generate_latest(registry).decode()
    exported = {row.name for row in table() if f"# HELP {row.name} " in text}
    assert exported == {row.name for row in table() if row.role in (role, "both")}


def test_a_series_that_is_forgotten_is_exported_no_more():
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for _ in range(2):
        metrics.set("farmd_owner_desired_pods", 4, owner="web", kind="rcs")
        assert 'owner="web"' in generate_latest(registry).decode()
        metrics.forget("farmd_owner_desired_pods", owner="web", kind="rcs")
        assert 'owner="web"' not in generate_latest(registry).decode()


@pytest.mark.parametrize(
    "ask",
    [
        lambda metrics: metrics.count("farmd_nonsense_total"),
        lambda metrics: metrics.set("farmd_lock_events_total", 1, event="claimed"),
        lambda metrics: metrics.count("farmd_lock_events_total"),
        lambda metrics: metrics.count("farmd_lock_events_total", 1, event="claimed", kind="rc"),
        lambda metrics: metrics.count("farmd_lock_events_total", 1, event="4f3a"),
    ],
    ids=["name", "kind", "no label", "one label more", "open value"],
)
def test_what_the_table_does_not_have_is_refused(ask):
    with pytest.raises(UnknownMetric, match=r"farmd_"):
        ask(Metrics(CollectorRegistry()))
