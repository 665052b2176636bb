"""A panel of Grafana as plain data (schema version 41, Grafana 12), from a few lines of a dashboard's file.

The key of the panel's title says how it is drawn: `stat`, `graph`, `timeline` or `table`. Every panel has a
unit, thresholds, a description (`asks`) with the question that it answers, and a link to the runbook of the
alert that watches the same numbers.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from farmd.kinds import KINDS

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
# The labels that have thousands of values, and how many lines of them a graph has.
MANY, LINES = {"instance", "owner"}, 12
# Which dashboard tells more of a kind of work; a test asks for every kind of the registry.
HOMES = {
    "rcs": "farmd-replication",
    "daemonsets": "farmd-replication",
    "nodes": "farmd-replication",
    "rollouts": "farmd-rollouts",
    "deployments": "farmd-rollouts",
    "progressive": "farmd-rollouts",
    "jobs": "farmd-jobs",
    "schedules": "farmd-jobs",
    "jobtemplates": "farmd-jobs",
    "kubejobs": "farmd-jobs",
    "apps": "farmd-jobs",
    "housekeeping": "farmd-process",
    "catalog": "farmd-process",
}


class Panel(msgspec.Struct, rename={"thresholds": "from"}, forbid_unknown_fields=True, kw_only=True):
    """One panel as the file has it: exactly one title, and ``expr`` (one value) or ``lines`` (by legend)."""

    stat: str = ""
    graph: str = ""
    timeline: str = ""
    table: str = ""
    asks: str
    expr: str = ""
    lines: dict[str, str] = {}
    # Of these legends the least are drawn where there are too many lines; of all others the greatest.
    least: list[str] = []
    # The colour from each value on; the colour below all of them is `first`, else green.
    thresholds: dict[int | float | str, str] = {}
    words: dict[int, tuple[str, str]] = {}
    unit: str = "short"
    hidden: list[str] = []
    width: int = 0
    stacked: bool = False
    marks: bool = False
    by_kind: bool = False
    runbook: str = ""


def drawn(panel: Panel) -> Json:
    """The panel as Grafana reads it, not yet placed."""
    if panel.stat:
        drawing = _panel("stat", panel.stat, panel, STAT, (panel.width or 4, 4))
    elif panel.graph:
        drawing = _panel("timeseries", panel.graph, panel, GRAPH, (12, 8))
        drawing["fieldConfig"]["defaults"]["custom"] = _lines(panel)
    elif panel.timeline:
        drawing = _panel("state-timeline", panel.timeline, panel, TIMELINE, (12, 8))
        drawing["fieldConfig"]["defaults"] |= {
            "custom": {"fillOpacity": 70, "lineWidth": 0},
            "mappings": [{"type": "value", "options": _words(panel)}],
        }
    else:
        drawing = _panel("table", panel.table, panel, TABLE, (panel.width or 12, 8))
        without = dict.fromkeys(("Time", "__name__", *panel.hidden), True)
        drawing["transformations"] = [{"id": "organize", "options": {"excludeByName": without}}]
    return drawing


STAT: Json = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "background",
    "graphMode": "area",
    "textMode": "auto",
    "justifyMode": "auto",
    "orientation": "auto",
}
GRAPH: Json = {
    "legend": {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["lastNotNull", "max"],
    },
    "tooltip": {"mode": "multi", "sort": "desc"},
}
TIMELINE: Json = {
    "mergeValues": True,
    "showValue": "auto",
    "alignValue": "left",
    "rowHeight": 0.9,
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "single", "sort": "none"},
}
TABLE: Json = {"showHeader": True, "cellHeight": "sm"}


def _panel(kind: str, title: str, panel: Panel, options: Json, size: tuple[int, int]) -> Json:
    queries = panel.lines or {"": panel.expr}
    width, height = size
    defaults: Json = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": _thresholds(panel),
        "color": {"mode": "thresholds" if kind in ("stat", "state-timeline") else "palette-classic"},
        "mappings": [],
        "links": [],
        "custom": {},
    }
    return {
        "type": kind,
        "title": title,
        "description": panel.asks,
        "datasource": SOURCE,
        "targets": [
            _query(panel, legend, expr) | {"refId": chr(ord("A") + index)}
            for index, (legend, expr) in enumerate(queries.items())
        ],
        "options": options,
        "fieldConfig": {"defaults": defaults, "overrides": _by_kind() if panel.by_kind else []},
        "links": [runbook_link(panel.runbook)] if panel.runbook else [],
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
    }


def _query(panel: Panel, legend: str, expr: str) -> Json:
    """One query. Of lines of single processes or owners only the first are drawn: a fleet has thousands."""
    if MANY & set(re.findall(r"{{(\w+)}}", legend)):
        expr = f"{'bottomk' if legend in panel.least else 'topk'}({LINES}, {expr})"
    now = bool(panel.table)
    return {
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "range": not now,
        "instant": now,
        "format": "table" if now else "time_series",
        "editorMode": "code",
    }


def _thresholds(panel: Panel) -> Json:
    points = dict(panel.thresholds)
    first: Json = {"color": points.pop("first", "green"), "value": None}
    return {
        "mode": "absolute",
        "steps": [first, *({"color": color, "value": value} for value, color in points.items())],
    }


def _lines(panel: Panel) -> Json:
    """How a graph draws its lines; ``marks``: the thresholds are lines, too."""
    return {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if panel.stacked else "linear",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if panel.marks else "off"},
        "axisSoftMin": 0,
    }


def _words(panel: Panel) -> Json:
    """The text and colour of each value."""
    return {
        str(value): {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(panel.words.items())
    }


def _by_kind() -> list[Json]:
    """Series of kinds of work get people's word for it, and a link to the dashboard that tells more."""
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [
                {"id": "displayName", "value": kind.many},
                {
                    "id": "links",
                    "value": [
                        {
                            "title": f"More of {kind.many}",
                            "url": f"/d/{HOMES[name]}?var-kind={name}&${{__url_time_range}}",
                            "targetBlank": False,
                        }
                    ],
                },
            ],
        }
        for name, kind in KINDS.items()
    ]


def runbook_link(alert: str) -> Json:
    """To the page that says what to do when that alert fires."""
    return {"title": f"Runbook: {alert}", "url": f"${{runbooks}}/{alert}.md", "targetBlank": True}
