"""Ask a Prometheus what a dashboard would ask it: the variables of our dashboards stand for everything."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

Labels = dict[str, str]


class Refused(Exception):
    """Prometheus does not accept a query; one line with the query and its words."""


@dataclass(frozen=True)
class Series:
    """One series: times are seconds since the epoch, values without a number are left out."""

    labels: Labels
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus by its address; ``interval`` is what Grafana would take for ``$__rate_interval``."""

    address: str
    interval: str = "1m"

    def query(self, expr: str) -> str:
        """A query of a panel with the dashboard's variables filled in."""
        for name, value in {"$__rate_interval": self.interval, "$kind": ".+", "$instance": ".+"}.items():
            expr = expr.replace(name, value)
        return expr

    def now(self, expr: str) -> list[tuple[Labels, float]]:
        """What a query returns now."""
        found = self._ask("query", query=self.query(expr))
        return [(each["metric"], float(each["value"][1])) for each in found]

    def range(self, expr: str, minutes: float, points: int = 240) -> list[Series]:
        """What a query returns for the last minutes; series without any number are left out."""
        end = time.time()
        step = max(1.0, minutes * 60 / points)
        found = self._ask(
            "query_range", query=self.query(expr), start=str(end - minutes * 60), end=str(end), step=str(step)
        )
        listed = [
            Series(each["metric"], [(at, float(value)) for at, value in each["values"] if value != "NaN"])
            for each in found
        ]
        return [each for each in listed if each.points]

    def _ask(self, kind: str, **parameters: str) -> list[Any]:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/{kind}", data=body, timeout=60) as answer:
                return list(json.load(answer)["data"]["result"])
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{parameters['query']}: {error.read().decode()}") from error
