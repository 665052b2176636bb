"""All dashboards, and the files that they are written to."""

from __future__ import annotations

import json
from pathlib import Path

from monitoring.dashboards.fleet import fleet
from monitoring.dashboards.jobs import jobs
from monitoring.dashboards.panels import Json
from monitoring.dashboards.process import process
from monitoring.dashboards.replication import replication
from monitoring.dashboards.rollouts import rollouts

FOLDER = Path(__file__).resolve().parents[1] / "grafana" / "dashboards"


def every() -> list[Json]:
    """The dashboards, in the order in which somebody at night reads them."""
    return [fleet(), replication(), rollouts(), jobs(), process()]


def files() -> dict[str, str]:
    """The name of each file, and its text."""
    return {f"{each['uid']}.json": json.dumps(each, indent=1, ensure_ascii=False) + "\n" for each in every()}
