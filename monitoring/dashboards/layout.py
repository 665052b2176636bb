"""Dashboards from their files: rows, places on the grid, variables, links, and alerts as annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from farmd.kinds import KINDS
from monitoring.dashboards.panels import SOURCE, Json, Panel, drawn

HERE = Path(__file__).parent
FOLDER = HERE.parent / "grafana" / "dashboards"
# In the order in which somebody at night reads them.
NAMES = ("fleet", "replication", "rollouts", "jobs", "process")

WIDTH = 24
# Grafana serves the folder of runbooks as files where it is mounted below its own (docker-compose.yml).
RUNBOOKS = "/public/runbooks"
PAGE = "http://127.0.0.1:7520"
FIRING = 'ALERTS{alertname=~"Farmd.+", alertname!="FarmdHeartbeat", alertstate="firing"}'


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A row; its title is the question that its panels answer. ``{panel: NAME}`` is one of shared.yml."""

    title: str
    panels: list[dict[str, Any]]


class Dashboard(msgspec.Struct, forbid_unknown_fields=True):
    """One file of this folder. ``kinds``: the kinds of work that can be chosen; without them all."""

    uid: str
    title: str
    description: str
    rows: list[Row]
    kinds: Sequence[str] = tuple(KINDS)


def every() -> list[Json]:
    """The dashboards."""
    shared = yaml.safe_load((HERE / "shared.yml").read_text())
    texts = [(HERE / f"{name}.yml").read_text() for name in NAMES]
    return [_dashboard(msgspec.convert(yaml.safe_load(text), Dashboard), shared) for text in texts]


def files() -> dict[str, str]:
    """The name of each file of Grafana, and its text."""
    return {f"{each['uid']}.json": json.dumps(each, indent=1, ensure_ascii=False) + "\n" for each in every()}


def _dashboard(asked: Dashboard, shared: Mapping[str, Json]) -> Json:
    return {
        "uid": asked.uid,
        "title": f"farmd / {asked.title}",
        "description": asked.description,
        "tags": ["farmd"],
        "schemaVersion": 41,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "annotations": {"list": [_alerts(), _starts()]},
        "templating": {"list": _variables(asked.kinds)},
        "links": _links(),
        "panels": _placed([(row.title, [_panel(each, shared) for each in row.panels]) for row in asked.rows]),
    }


def _panel(each: Json, shared: Mapping[str, Json]) -> Json:
    if name := each.get("panel"):
        each = shared[name] | {key: value for key, value in each.items() if key != "panel"}
    return drawn(msgspec.convert(each, Panel))


def _placed(rows: Sequence[tuple[str, Sequence[Json]]]) -> list[Json]:
    placed: list[Json] = []
    top = 0
    for title, panels in rows:
        head = {"type": "row", "title": title, "collapsed": False, "panels": []}
        placed.append({**head, "id": len(placed) + 1, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top}})
        top, left, height = top + 1, 0, 0
        for panel in panels:
            size = panel["gridPos"]
            if left + size["w"] > WIDTH:
                top, left, height = top + height, 0, 0
            placed.append({**panel, "id": len(placed) + 1, "gridPos": {**size, "x": left, "y": top}})
            left, height = left + size["w"], max(height, size["h"])
        top += height
    return placed


def _variables(kinds: Sequence[str]) -> list[Json]:
    options = [
        {"text": KINDS[kind].many, "value": kind, "selected": False} for kind in KINDS if kind in kinds
    ]
    every = {"text": "All", "value": "$__all", "selected": True}
    return [
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
            "hide": 0,
        },
        {
            "name": "kind",
            "label": "Kind of work",
            "type": "custom",
            "query": ",".join(f"{each['text']} : {each['value']}" for each in options),
            "options": [every, *options],
            "current": {"text": ["All"], "value": ["$__all"]},
            "includeAll": True,
            "multi": True,
            "hide": 0,
        },
        {
            "name": "instance",
            "label": "Farm or agent",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(farmd_build_info, instance)", "refId": "instance"},
            "current": {"text": ["All"], "value": ["$__all"]},
            "includeAll": True,
            "allValue": ".+",
            "multi": True,
            "refresh": 2,
            "sort": 1,
            "hide": 0,
        },
        _text("page", "Address of a farm", PAGE),
        _text("runbooks", "Address of the runbooks", RUNBOOKS),
    ]


def _text(name: str, label: str, value: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "current": {"text": value, "value": value},
        "hide": 0,
    }


def _links() -> list[Json]:
    return [
        {
            "title": "farmd",
            "type": "dashboards",
            "tags": ["farmd"],
            "asDropdown": False,
            "includeVars": False,
            "keepTime": True,
            "targetBlank": False,
        },
        {
            "title": "The farm's page: single items",
            "type": "link",
            "url": "${page}",
            "icon": "external link",
            "tooltip": "An item's name is not a label: the page and farmctl show single items.",
            "targetBlank": True,
            "tags": [],
        },
    ]


def _alerts() -> Json:
    return _annotation("Alerts", "red", FIRING, "{{alertname}}")


def _starts() -> Json:
    expr = 'changes(process_start_time_seconds{job=~"farmd-.+", instance=~"$instance"}[2m]) > 0'
    return _annotation("Starts", "blue", expr, "{{instance}} started")


def _annotation(name: str, color: str, expr: str, title: str) -> Json:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "titleFormat": title,
        "step": "30s",
    }
