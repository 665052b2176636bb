"""``python -m tests.soak.picture FILE.jsonl OUT.svg``: what a soak took over time, and its slopes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.soak.record import Sample

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, TOP, GAP = 640, 130, 70, 30, 46
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
WARM_UP = 1200.0
"""Seconds until the processes are warm; a short soak leaves out more than its first half."""
LASTING = ("farm-1", "n1")


class Slope(NamedTuple):
    """How much a line rises per hour, and how much of that may be chance (two standard errors)."""

    per_hour: float
    noise: float

    @property
    def flat(self) -> bool:
        """Whether it does not rise, as far as is known."""
        return not self.per_hour > self.noise

    def __str__(self) -> str:
        return "unknown" if math.isnan(self.per_hour) else f"{self.per_hour:+.1f} ± {self.noise:.1f}"


def slope(points: Sequence[Point]) -> Slope:
    """The line through points of (seconds, value) by least squares; of fewer than three nothing is known.

    Neighbours are alike, so the error is that of ten means over equal times, of which each counts once.
    """
    means = _means(points, 10)
    if len(means) < 3:
        return Slope(math.nan, math.inf)
    middle = sum(x for x, _ in means) / len(means)
    mean = sum(y for _, y in means) / len(means)
    spread = sum((x - middle) ** 2 for x, _ in means)
    rise = sum((x - middle) * (y - mean) for x, y in means) / spread
    rest = sum((y - mean - rise * (x - middle)) ** 2 for x, y in means)
    return Slope(rise * 3600, 2 * 3600 * math.sqrt(rest / (len(means) - 2) / spread))


def _means(points: Sequence[Point], count: int) -> list[Point]:
    if not points:
        return []
    first, width = points[0][0], (points[-1][0] - points[0][0]) / count or 1.0
    parts: dict[int, list[Point]] = {}
    for point in points:
        parts.setdefault(min(count - 1, int((point[0] - first) / width)), []).append(point)
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts.values()
    ]


def read(path: Path) -> list[Sample]:
    """The samples of a file."""
    return [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]


def lines(samples: Sequence[Sample]) -> dict[str, dict[str, list[Point]]]:
    """The lines of each panel."""

    def of(value: Callable[[Sample], float | None]) -> list[Point]:
        return [(each.at, found) for each in samples if (found := value(each)) is not None]

    def process(name: str, field: str, unit: float) -> list[Point]:
        return of(
            lambda each: getattr(each.processes[name], field) / unit if name in each.processes else None
        )

    servers = sorted({name for each in samples for name in each.processes if name.startswith("consul")})
    shown = [*LASTING, *servers]
    return {
        "memory, MiB": {name: process(name, "kib", 1024) for name in shown},
        "descriptors": {name: process(name, "descriptors", 1) for name in shown},
        "keys in Consul": {
            "all": of(lambda each: each.keys or None),
            "audit": of(lambda each: each.audits if each.keys else None),
            "others": of(lambda each: each.keys - each.audits if each.keys else None),
        },
        "files of all agents": {"files": of(lambda each: each.files if each.round else None)},
    }


def table(samples: Sequence[Sample]) -> str:
    """The slopes after the processes are warm, as a table in Markdown."""
    end = samples[-1].at
    after = min(WARM_UP, end * 0.6)
    rows = ["| what | first | last | per hour |", "|---|---|---|---|"]
    for panel, each in lines(samples).items():
        for name, points in each.items():
            warm = [point for point in points if point[0] >= after]
            if not warm:
                continue
            found, means = slope(warm), _means(warm, 10)
            rows.append(f"| {panel}: {name} | {means[0][1]:.1f} | {means[-1][1]:.1f} | {found} |")
    return "\n".join(rows)


def drawn(samples: Sequence[Sample]) -> str:
    """The picture."""
    panels = lines(samples)
    whole = TOP + len(panels) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {whole}"'
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (title, each) in enumerate(panels.items()):
        parts += _panel(title, each, TOP + number * (HEIGHT + GAP), samples[-1].at)
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, found: dict[str, list[Point]], top: float, end: float) -> list[str]:
    highest = max((y for points in found.values() for _, y in points), default=1.0) * 1.1 or 1.0
    base = top + HEIGHT
    parts = [
        f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>',
        f'<path d="M{LEFT} {top}V{base}H{LEFT + WIDTH}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT - 6}" y="{top + 8}" text-anchor="end">{highest:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{base + 15}" text-anchor="end">{end / 60:.0f} min</text>',
    ]
    for number, (name, points) in enumerate(found.items()):
        colour = COLOURS[number % len(COLOURS)]
        way = " ".join(f"{LEFT + x / end * WIDTH:.1f},{base - y / highest * HEIGHT:.1f}" for x, y in points)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        parts.append(f'<text x="{LEFT + 160 + number * 90}" y="{top - 8}" fill="{colour}">{name}</text>')
    return parts


def main(source: Path, out: Path) -> int:
    """Draw the picture of a soak, and print its slopes."""
    samples = read(source)
    out.write_text(drawn(samples))
    print(table(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
