"""Prometheus' own checker accepts the rules, fires each alert when it must and knows every metric in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from farmd.observe.metrics import table
from tests.binaries import binary
from tests.fleet import LIMIT

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
        timeout=LIMIT,
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


def test_a_store_that_is_away_is_one_critical_alert_of_two_thousand_nodes(tmp_path):
    instances = [("farmd-farm", f"farm-{number}") for number in range(3)]
    instances += [("farmd-agent", f"node-{number}") for number in range(2000)]
    labels = [f'job="{job}", instance="{instance}"' for job, instance in instances]
    case = {
        "interval": "1m",
        "input_series": [
            *({"series": f"farmd_store_reachable{{{each}}}", "values": "0x30"} for each in labels),
            *({"series": f"up{{{each}}}", "values": "1x30"} for each in labels),
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{severity=~"critical|warning", alertstate="firing"})',
                "eval_time": "30m",
                "exp_samples": [{"labels": '{alertname="FarmdStoreDown"}', "value": 1}],
            }
        ],
    }
    there = tmp_path / "rules_test.yml"
    there.write_text(
        yaml.safe_dump(
            {"rule_files": [str(MONITORING / "rules.yml")], "evaluation_interval": "1m", "tests": [case]}
        )
    )
    promtool("test", "rules", str(there))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_tested_while_it_fires_and_while_it_is_quiet(rule):
    seen = {
        bool(check["exp_alerts"]): case["name"]
        for case in yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
        for check in case["alert_rule_test"]
        if check["alertname"] == rule["alert"]
    }
    assert seen.keys() == {True, False} or rule["expr"] == "vector(1)"


def test_every_metric_is_in_the_table():
    known = {f"{row.name}{end}" for row in table() for end in ("", "_bucket", "_count")}
    recorded = {name for rule in RULES for name in re.findall(r"\b[a-z]+:farmd_\w+:\w+", rule["expr"])}
    used = {name for rule in RULES for name in re.findall(r"(?<!:)\bfarmd_[a-z_]+\b(?!:)", rule["expr"])}
    assert used - known == set()
    assert recorded - {rule.get("record") for rule in RULES} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_has_a_severity_and_says_what_is_wrong(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
