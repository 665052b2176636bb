"""The file of a daemon set, as people write it, and the record that it stands for.

``disabled`` may be left out where a daemon set exists already: then it stays as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.commands import specs
from store import codec
from store.daemonsets import DaemonSet, Floor
from store.errors import InputInvalid
from store.manifests import Manifest


class DaemonSetSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a daemon set file; the fields of the record in people's words (docs/cli.md)."""

    name: str
    pod: Manifest
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    min_health: int | str | None = None
    rate: int = 0
    max_in_progress: int = 50
    min_healthy_time: float = 10.0
    disabled: bool | None = None
    needs: list[str] = []


def parse_file(text: str, source: str) -> list[tuple[str, DaemonSetSpec]]:
    """All daemon sets of one file: (where each came from, the spec).

    Raises:
        InputInvalid: anything that does not fit, in any document; also one name twice.
    """
    return specs.parse_all(text, source, parse)


def parse(data: Any, source: str) -> DaemonSetSpec:
    """One daemon set from a parsed document.

    Raises:
        InputInvalid: naming the file, the field, what was found and what was expected.
    """
    spec = codec.parse_input(DaemonSetSpec, data, source)
    specs.check_common(spec, source)
    specs.check_count(spec.rate, f"{source}: rate")
    specs.check_count(spec.max_in_progress, f"{source}: max_in_progress", lowest=1)
    specs.check_seconds(spec.min_healthy_time, f"{source}: min_healthy_time")
    _check_floor(spec.min_health, f"{source}: min_health")
    if spec.pod.placement.spread:
        raise InputInvalid(
            f"{source}: pod.placement.spread: found {len(spec.pod.placement.spread)} rules, expected none:"
            " a daemon set has one pod on every eligible node",
            field="pod.placement.spread",
        )
    return spec


def _check_floor(floor: int | str | None, field: str) -> None:
    try:
        msgspec.convert(floor, Floor | None)
    except msgspec.ValidationError as error:
        raise InputInvalid(
            f"{field}: found {floor!r}, expected a number of pods or a share such as '90%'",
            field="min_health",
        ) from error


def record(spec: DaemonSetSpec, record_id: str, sha: str, existing: DaemonSet | None = None) -> DaemonSet:
    """The record that a spec stands for; what it leaves open is taken from ``existing``."""
    kept_disabled = existing.disabled if existing is not None else False
    return DaemonSet(
        id=record_id,
        name=spec.name,
        manifest=sha,
        pod_id=spec.pod.id,
        node_selector=specs.canonical_selector(spec.node_selector, f"{spec.name}: node_selector"),
        labels=spec.labels,
        pod_labels=spec.pod_labels,
        disabled=kept_disabled if spec.disabled is None else spec.disabled,
        min_health=spec.min_health,
        rate=spec.rate,
        max_in_progress=spec.max_in_progress,
        min_healthy_time=spec.min_healthy_time,
        needs=spec.needs,
        deleting=existing.deleting if existing is not None else False,
    )


def as_file(daemonset: DaemonSet, manifest: Manifest) -> dict[str, Any]:
    """A record as the document that a person would write; ``parse`` of it gives the same daemon set."""
    spec = DaemonSetSpec(
        name=daemonset.name,
        pod=manifest,
        node_selector=daemonset.node_selector,
        labels=daemonset.labels,
        pod_labels=daemonset.pod_labels,
        min_health=daemonset.min_health,
        rate=daemonset.rate,
        max_in_progress=daemonset.max_in_progress,
        min_healthy_time=daemonset.min_healthy_time,
        disabled=daemonset.disabled or None,
        needs=daemonset.needs,
    )
    document: dict[str, Any] = msgspec.to_builtins(spec)
    pod = document.pop("pod")
    return {**document, "pod": pod}
