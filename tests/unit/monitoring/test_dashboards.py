"""The dashboards are what their code says, fit Grafana's model, and ask only for metrics that farmd has."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from farmd.kinds import KINDS
from farmd.observe.metrics import table
from monitoring.dashboards.layout import FOLDER, every, files
from monitoring.dashboards.panels import HOMES
from tests.grafana import Dashboard

ROOT = Path(__file__).resolve().parents[3]
DASHBOARDS = [msgspec.convert(each, Dashboard) for each in every()]
PANELS = [
    pytest.param(panel, id=f"{each.uid}: {panel.title}") for each in DASHBOARDS for panel in each.drawn()
]
ALERTS = {
    rule["alert"]
    for group in yaml.safe_load((ROOT / "monitoring/rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
# What Prometheus and its client library give every process.
GIVEN = {"process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"} | {
    *("process_open_fds", "process_max_fds", "up", "ALERTS")
}


def known() -> dict[str, frozenset[str]]:
    """Every series of farmd, and its labels."""
    listed = dict.fromkeys(GIVEN, frozenset[str]())
    for row in table():
        labels = frozenset(row.labels)
        listed[row.name] = labels
        if row.kind == "histogram":
            listed |= {f"{row.name}_bucket": labels | {"le"}, f"{row.name}_count": labels}
    return listed


def test_what_is_checked_in_is_what_the_code_makes():
    checked_in = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert checked_in == files(), "run: python -m monitoring.dashboards"


@pytest.mark.parametrize("name", files())
def test_each_file_fits_the_model_of_grafana(name):
    msgspec.json.decode(files()[name], type=Dashboard)


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.update(schemaVersion=16),
        lambda each: each.update(colour="red"),
        lambda each: each["panels"][1].update(descripton="?"),
        lambda each: each["panels"][1]["targets"][0].update(expr=""),
        lambda each: each["panels"][1]["gridPos"].update(w=25),
    ],
    ids=["old schema", "unknown field", "misspelt field", "no query", "too wide"],
)
def test_the_model_refuses_what_grafana_would_only_show_oddly(change):
    one = every()[0]
    change(one)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(one, Dashboard)


@pytest.mark.parametrize("each", DASHBOARDS, ids=lambda each: each.uid)
def test_no_two_panels_share_an_id_or_a_place(each):
    assert len({panel.id for panel in each.panels}) == len(each.panels)
    taken = [
        (x, y)
        for place in (panel.grid_pos for panel in each.panels)
        for x, y in itertools.product(range(place.x, place.x + place.w), range(place.y, place.y + place.h))
    ]
    assert len(set(taken)) == len(taken)
    assert all(x < 24 for x, _ in taken)


@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_asks_a_question_and_names_metrics_and_labels_of_the_table(panel):
    assert "?" in panel.description or ":" in panel.description
    series = known()
    for target in panel.targets:
        used = set(re.findall(r"\b(?:farmd|process)_[a-z_]+|\bup\b|\bALERTS\b", target.expr))
        assert used
        assert used - series.keys() == set()
        grouped = {
            label.strip() for by in re.findall(r"\bby \(([^)]*)\)", target.expr) for label in by.split(",")
        }
        shown = set(re.findall(r"{{(\w+)}}", target.legend_format))
        labels = frozenset({"instance", "job"}).union(*(series[name] for name in used))
        assert (grouped | shown) - labels == set()


def test_no_panel_draws_a_line_for_each_of_two_thousand_processes():
    for target in (target for each in DASHBOARDS for panel in each.drawn() for target in panel.targets):
        if re.search(r"{{(instance|owner)}}", target.legend_format):
            assert re.match(r"(topk|bottomk)\(", target.expr), target


def test_each_runbook_that_a_panel_links_to_is_that_of_an_alert():
    for panel in (panel for each in DASHBOARDS for panel in each.drawn()):
        for link in panel.links:
            found = re.fullmatch(r"\$\{runbooks\}/(\w+)\.md", link.url)
            assert found is not None, panel.title
            assert found[1] in ALERTS, panel.title
        red = [step for step in panel.field_config.defaults.thresholds.steps if step.color == "red"]
        assert panel.links or not red, panel.title


def test_every_kind_of_work_has_a_dashboard_that_offers_it():
    offered = {
        each.uid: {str(option.value) for variable in each.templating.entries for option in variable.options}
        for each in DASHBOARDS
    }
    assert HOMES.keys() == KINDS.keys()
    assert [kind for kind, home in HOMES.items() if kind not in offered[home]] == []
    assert KINDS.keys() <= offered["farmd-fleet"]


def test_variables_in_queries_are_those_of_the_dashboard():
    for each in DASHBOARDS:
        names = {variable.name for variable in each.templating.entries} | {"__rate_interval"}
        used = {
            name
            for panel in each.drawn()
            for t in panel.targets
            for name in re.findall(r"\$\{?(\w+)", t.expr)
        }
        assert used <= names


def test_provisioning_reads_the_folder_that_compose_mounts():
    provider = yaml.safe_load((FOLDER.parent / "provisioning/dashboards/farmd.yml").read_text())["providers"][
        0
    ]
    assert provider["options"]["path"] == "/var/lib/farmd-dashboards"
