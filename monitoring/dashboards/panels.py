"""Panels of Grafana as plain data (schema version 41, Grafana 12).

A panel is drawn from one or more queries; all have a unit, thresholds, a description that says which question
they answer, and a link to the runbook of the alert that watches the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from farmd.kinds import KINDS

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED = "green", "yellow", "red"
COUNT, SECONDS, SHARE, BYTES, RATE, REQUESTS = "short", "s", "percentunit", "bytes", "ops", "reqps"
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
    "kubejobs": "farmd-jobs",
    "apps": "farmd-jobs",
    "housekeeping": "farmd-process",
    "catalog": "farmd-process",
}


def query(expr: str, legend: str = "", *, now: bool = False, least: bool = False) -> Json:
    """One query; ``legend`` may name labels as ``{{kind}}``. ``now``: the last value alone, for tables.

    Of lines of single processes or owners only the largest are drawn, or the ``least``: a fleet has
    thousands.
    """
    expr = " ".join(expr.split())
    if MANY & set(re.findall(r"{{(\w+)}}", legend)):
        expr = f"{'bottomk' if least else 'topk'}({LINES}, {expr})"
    return {
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "range": not now,
        "instant": now,
        "format": "table" if now else "time_series",
        "editorMode": "code",
    }


def steps(*points: tuple[float, str], first: str = GREEN) -> Json:
    """Thresholds: ``first``, and from each value on another colour."""
    listed: list[Json] = [{"color": first, "value": None}]
    return {
        "mode": "absolute",
        "steps": listed + [{"color": color, "value": value} for value, color in points],
    }


CALM = steps()
NONE_IS_GOOD = steps((1, RED))


def stat(title: str, description: str, expr: str, *, width: int = 4, **more: Any) -> Json:
    """One number of now, coloured by its thresholds."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    return _panel("stat", title, description, [query(expr)], options, (width, 4), **more)


def graph(
    title: str,
    description: str,
    *queries: Json,
    stacked: bool = False,
    marks: bool = False,
    **more: Any,
) -> Json:
    """Lines over time; ``marks``: the thresholds are drawn as lines, too."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if stacked else "linear",
        "lineWidth": 1,
        "fillOpacity": 30 if stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if marks else "off"},
        "axisSoftMin": 0,
    }
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, description, queries, options, (12, 8), custom=custom, **more)


def timeline(
    title: str, description: str, *queries: Json, words: dict[str, tuple[str, str]], **more: Any
) -> Json:
    """States over time, one row a series; ``words``: text and colour of each value."""
    mapped = {
        value: {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(words.items())
    }
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"fillOpacity": 70, "lineWidth": 0}
    panel = _panel("state-timeline", title, description, queries, options, (12, 8), custom=custom, **more)
    panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": mapped}]
    return panel


def table(
    title: str, description: str, expr: str, *, hidden: Sequence[str] = (), width: int = 12, **more: Any
) -> Json:
    """One row for each series of now; ``hidden``: labels without a column."""
    panel = _panel(
        "table",
        title,
        description,
        [query(expr, now=True)],
        {"showHeader": True, "cellHeight": "sm"},
        (width, 8),
        **more,
    )
    panel["transformations"] = [
        {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "__name__", *hidden), True)}}
    ]
    return panel


def by_kind() -> list[Json]:
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


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Json],
    options: Json,
    size: tuple[int, int],
    *,
    unit: str = COUNT,
    thresholds: Json = CALM,
    runbook: str = "",
    custom: Json | None = None,
    overrides: Sequence[Json] = (),
) -> Json:
    width, height = size
    links = [runbook_link(runbook)] if runbook else []
    defaults: Json = {
        "unit": unit,
        "min": 0,
        "thresholds": thresholds,
        "color": {"mode": "thresholds" if kind in ("stat", "state-timeline") else "palette-classic"},
        "mappings": [],
        "links": [],
        "custom": custom or {},
    }
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": [{**each, "refId": chr(ord("A") + index)} for index, each in enumerate(queries)],
        "options": options,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "links": links,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
    }


def runbook_link(alert: str) -> Json:
    """To the page that says what to do when that alert fires."""
    return {"title": f"Runbook: {alert}", "url": f"${{runbooks}}/{alert}.md", "targetBlank": True}
