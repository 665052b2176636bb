"""The file of a daemon set, as people write it (docs/cli.md)."""

from __future__ import annotations

import msgspec

from farmd.commands import specs
from store.daemonsets import DaemonSet, Floor
from store.errors import InputInvalid
from store.manifests import Manifest
from store.quantities import Seconds


class DaemonSetSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a daemon set file."""

    name: str
    pod: Manifest
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    min_health: Floor | None = None
    rate: int = 0
    max_in_progress: int = 50
    min_healthy_time: Seconds = 10.0
    disabled: bool | None = None
    needs: list[str] = []


def _check(spec: DaemonSetSpec, source: str) -> None:
    specs.check_count(spec.rate, f"{source}: rate")
    specs.check_count(spec.max_in_progress, f"{source}: max_in_progress", lowest=1)
    if spread := spec.pod.placement.spread:
        raise InputInvalid(
            f"{source}: pod.placement.spread: found {len(spread)} rules, expected none:"
            " a daemon set has one pod on every eligible node",
            field="pod.placement.spread",
        )


FILE = specs.SpecFile(spec=DaemonSetSpec, record=DaemonSet, check=_check)
