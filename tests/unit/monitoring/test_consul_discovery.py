"""The configuration of Prometheus by Consul's catalogue reads labels that entries have, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from farmd.catalog import plan
from store import catalog

FOLDER = Path(__file__).parents[3] / "monitoring"
SERVICE = "__meta_consul_service_metadata_"


def jobs(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]
    return {each["job_name"]: each for each in found}


def test_both_configurations_have_the_same_jobs_and_the_one_of_consul_reads_what_entries_have() -> None:
    consul = jobs("prometheus-consul.yml")
    assert list(consul) == list(jobs("prometheus.yml"))
    (member,) = plan.members("cluster0", catalog.FARMS, {"one": ("http://a.test:1", "1")}, (), {})
    assert member.meta is not None
    for name, job in consul.items():
        known = set(catalog.OWN if name == "farmd-pods" else member.meta)
        rules = job["relabel_configs"]
        read = {label for rule in rules for label in rule["source_labels"] if label.startswith(SERVICE)}
        assert {label.removeprefix(SERVICE) for label in read} <= known
        asked = job["consul_sd_configs"][0].get("services", [])
        assert asked == [each for each in catalog.MEMBERS if each == name]
