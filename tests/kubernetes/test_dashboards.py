"""Every panel and every alert finds its numbers in a real Prometheus that watched a fleet and its faults."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from monitoring.ask import Prometheus
from monitoring.dashboards.layout import every
from tests.farmctl import ROOT
from tests.kubernetes.farmjobs import Jobs
from tests.kubernetes.hour import Hour, hour

pytestmark = [pytest.mark.xdist_group("kubernetes rollouts"), pytest.mark.slow]
MINUTES = 10.0
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "monitoring/rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
# What these happenings make true; promtool proves from when on they fire.
RAISED = {
    "FarmdHeartbeat",
    "FarmdOwnerDown",
    "FarmdFarmDown",
    "FarmdConfigRefused",
    "FarmdInvalidRecords",
    "FarmdFrozen",
    "FarmdBlocked",
    "FarmdRolloutWaits",
    "FarmdDeploymentWaits",
    "FarmdJobFailed",
    "FarmdPodsCrash",
    "FarmdRuntimeDown",
}


def selectors(expr: str) -> set[str]:
    """The series that an expression begins with, comparisons and functions left out."""
    return set(re.findall(r"(?:\w+:)?(?:farmd|process)_\w+(?::\w+)?(?:{[^}]*})?|\bup{[^}]*}", expr))


def empty_panels(prometheus: Prometheus) -> list[str]:
    return [
        f"{dashboard['uid']}: {panel['title']}: {target['expr']}"
        for dashboard in every()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not (
            prometheus.now(target["expr"]) if target["instant"] else prometheus.range(target["expr"], MINUTES)
        )
    ]


def unfounded_rules(prometheus: Prometheus) -> list[str]:
    return [
        f"{rule.get('alert', rule.get('record'))}: {selector}"
        for rule in RULES
        for selector in selectors(rule["expr"])
        if not prometheus.now(f"last_over_time({selector}[10m])")
    ]


def raised(prometheus: Prometheus) -> set[str]:
    found = prometheus.now('count by (alertname) (count_over_time(ALERTS{alertname=~"Farmd.+"}[10m]))')
    return {labels["alertname"] for labels, _ in found}


async def test_every_panel_and_every_alert_finds_data_after_an_eventful_hour(
    unclaimed: Jobs, tmp_path: Path
) -> None:
    async with hour(unclaimed, tmp_path) as seen:
        await told(seen)
        assert await asyncio.to_thread(empty_panels, seen.prometheus) == []
        assert await asyncio.to_thread(unfounded_rules, seen.prometheus) == []


async def told(seen: Hour) -> None:
    """Wait until Prometheus evaluated what happened."""
    for alert in sorted(RAISED):
        await seen.seen(f'count_over_time(ALERTS{{alertname="{alert}"}}[10m])')
    await seen.seen("sum(increase(farmd_deployment_duration_seconds_count[10m])) > 0")  # ends last of all
