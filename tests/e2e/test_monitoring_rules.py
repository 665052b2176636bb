"""Prometheus' own checker accepts the rules, fires each alert when it must and knows every metric in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from farmd.observe.metrics import table
from tests.binaries import binary

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def promtool(*arguments: str) -> str:
    """Run Prometheus' checker in the folder of the rules."""
    done = subprocess.run(
        [binary("promtool"), *arguments],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_valid():
    assert f"{len(RULES)} rules found" in promtool("check", "config", "prometheus.yml") + promtool(
        "check", "rules", "rules.yml"
    )


def test_each_alert_fires_when_it_must_and_not_before():
    promtool("test", "rules", "rules_test.yml")
    tested = (MONITORING / "rules_test.yml").read_text()
    assert [rule["alert"] for rule in ALERTS if f"alertname: {rule['alert']}" not in tested] == []


def test_every_metric_is_in_the_table():
    known = {row.name for row in table()} | {f"{row.name}_bucket" for row in table()}
    used = {name for rule in RULES for name in re.findall(r"\bfarmd_[a-z_]+", rule["expr"])}
    assert used
    assert used - known == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_to_do(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = [
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in (ROOT / page).read_text().splitlines()
        if line.startswith("#")
    ]
    assert anchor in headings
