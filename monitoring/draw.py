"""Draw the dashboards from a Prometheus, to look at them where there is no Grafana.

``python -m monitoring.draw http://127.0.0.1:9090 FOLDER [--minutes 60]`` writes one PNG for each dashboard.
It needs matplotlib (``python3 .ci/venv.py draw``). It shows what the queries return and where the panels lie,
not how Grafana looks.
"""

from __future__ import annotations

import argparse
import math
import re
import textwrap
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from monitoring.ask import Prometheus, Series
from monitoring.dashboards.layout import every
from monitoring.dashboards.panels import Json

WIDTH, ROW = 22.0, 0.42
BYTES, SECONDS, SHARE = "bytes", "s", "percentunit"  # Grafana's names
UNIT = {SECONDS: "s", SHARE: "%", BYTES: "MB"}
SCALE = {SHARE: 100.0, BYTES: 1e-6}
COLORS = {"green": "#73bf69", "yellow": "#fade2a", "red": "#f2495c"}


def draw(dashboard: Json, prometheus: Prometheus, minutes: float) -> Figure:
    """The whole dashboard as one figure, panels where Grafana puts them."""
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(WIDTH, height * ROW))
    for panel in panels:
        at = panel["gridPos"]
        left, bottom = at["x"] / 24, 1 - (at["y"] + at["h"]) / height
        if panel["type"] == "row":
            figure.text(left + 0.01, bottom + 0.3 / height, panel["title"], weight="bold", size=13)
            continue
        margin = (0.035 if panel["type"] != "state-timeline" else 0.09, 0.8 / height)
        place = (
            left + margin[0],
            bottom + margin[1],
            at["w"] / 24 - margin[0] - 0.01,
            (at["h"] - 2) / height,
        )
        axes = figure.add_axes(place)
        axes.set_title(panel["title"], size=9, loc="left")
        _DRAWN[panel["type"]](axes, panel, prometheus, minutes)
    return figure


def _asked(panel: Json, prometheus: Prometheus, minutes: float) -> list[tuple[str, Series]]:
    scale = SCALE.get(panel["fieldConfig"]["defaults"]["unit"], 1.0)
    listed = []
    for target in panel["targets"]:
        for series in prometheus.range(target["expr"], minutes):
            points = [(at, value * scale) for at, value in series.points]
            listed.append((legend(target["legendFormat"], series.labels), Series(series.labels, points)))
    return listed


def legend(template: str, labels: dict[str, str]) -> str:
    """A series' name as Grafana writes it."""
    if template == "__auto":
        return ", ".join(f"{name}={value}" for name, value in labels.items()) or "value"
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), template).strip() or "value"


def _graph(axes: Axes, panel: Json, prometheus: Prometheus, minutes: float) -> None:
    found = _asked(panel, prometheus, minutes)
    unit = UNIT.get(panel["fieldConfig"]["defaults"]["unit"], "")
    floor: dict[float, float] = {}
    stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    for name, series in sorted(found, key=lambda each: each[0])[:24]:
        times = [(at - series.points[0][0]) / 60 for at, _ in series.points]
        values = [value + floor.get(at, 0.0) for at, value in series.points]
        if stacked:
            axes.fill_between(
                times,
                [floor.get(at, 0.0) for at, _ in series.points],
                values,
                step="post",
                alpha=0.4,
                label=name,
            )
            floor |= {at: value for (at, _), value in zip(series.points, values, strict=True)}
        else:
            axes.plot(times, values, linewidth=1, label=name)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{unit}")
    if found:
        axes.legend(fontsize=6, loc="upper left", ncols=3, framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def _stat(axes: Axes, panel: Json, prometheus: Prometheus, minutes: float) -> None:
    found = _asked(panel, prometheus, minutes)
    value = found[0][1].points[-1][1] if found else math.nan
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
    axes.set_facecolor(COLORS[color])
    axes.set(xticks=[], yticks=[])
    unit = UNIT.get(panel["fieldConfig"]["defaults"]["unit"], "")
    axes.text(0.5, 0.4, f"{value:.4g}{unit}", ha="center", va="center", size=20, transform=axes.transAxes)


def _timeline(axes: Axes, panel: Json, prometheus: Prometheus, minutes: float) -> None:
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    found = sorted(_asked(panel, prometheus, minutes), key=lambda each: each[0])
    for row, (_, series) in enumerate(found):
        begin = series.points[0][0]
        for (at, value), (then, _) in zip(series.points, series.points[1:], strict=False):
            color = COLORS[words[f"{value:g}"]["color"]]
            axes.barh(row, (then - at) / 60, left=(at - begin) / 60, color=color, height=0.8)
    axes.set_yticks(range(len(found)), [name for name, _ in found], size=7)
    axes.tick_params(axis="x", labelsize=7)
    if not found:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def _table(axes: Axes, panel: Json, prometheus: Prometheus, _: float) -> None:
    hidden = panel["transformations"][0]["options"]["excludeByName"]
    axes.axis("off")
    lines = [
        "   ".join([*(f"{name}={text}" for name, text in labels.items() if name not in hidden), f"{value:g}"])
        for labels, value in prometheus.now(panel["targets"][0]["expr"])
    ]
    text = "\n".join(textwrap.shorten(line, 90) for line in sorted(lines)[:12]) or "no data"
    axes.text(0, 0.98, text, va="top", size=7, family="monospace", transform=axes.transAxes)


_DRAWN = {"timeseries": _graph, "stat": _stat, "state-timeline": _timeline, "table": _table}


def main() -> None:
    """Draw all dashboards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prometheus", help="address, such as http://127.0.0.1:9090")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    mpl.use("agg")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for dashboard in every():
        figure = draw(dashboard, Prometheus(asked.prometheus), asked.minutes)
        figure.savefig(asked.folder / f"{dashboard['uid']}.png", dpi=70)


if __name__ == "__main__":
    main()
