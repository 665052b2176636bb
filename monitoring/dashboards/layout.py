"""Dashboards around their panels: rows, places on the grid, variables, links, and alerts as annotations."""

from __future__ import annotations

from collections.abc import Sequence

from farmd.kinds import KINDS
from monitoring.dashboards.panels import SOURCE, Json

WIDTH = 24
# Grafana serves the folder of runbooks as files where it is mounted below its own (docker-compose.yml).
RUNBOOKS = "/public/runbooks"
PAGE = "http://127.0.0.1:7520"
FIRING = 'ALERTS{alertname=~"Farmd.+", alertname!="FarmdHeartbeat", alertstate="firing"}'
Row = tuple[str, Sequence[Json]]


def dashboard(uid: str, title: str, description: str, kinds: Sequence[str], *rows: Row) -> Json:
    """A dashboard of rows, each with the question that its panels answer as its title."""
    return {
        "uid": uid,
        "title": f"farmd / {title}",
        "description": description,
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
        "templating": {"list": _variables(kinds)},
        "links": _links(),
        "panels": _placed(rows),
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
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
