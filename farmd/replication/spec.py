"""The file of a replication controller, as people write it, and the record that it stands for.

The file is checked whole before anything is written; each refusal is one line that names the file,
the field, what was found and what was expected. ``replicas`` and ``disabled`` may be left out where
a controller exists already: then they stay as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.commands import specs
from store import codec
from store.errors import InputInvalid
from store.manifests import Manifest
from store.rcs import OnLost, ReplicationController, Strategy


class ControllerSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of an RC file; the fields of the record in people's words (docs/cli.md)."""

    name: str
    pod: Manifest
    replicas: int | None = None
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    replicas_per_node: int = 1
    max_unavailable: int = 1
    strategy: Strategy = "static"
    on_lost: OnLost = "replace"
    unhealthy_after: float = 300.0
    transfer_timeout: float = 300.0
    min_healthy_time: float = 10.0
    disabled: bool | None = None
    needs: list[str] = []


def parse_file(text: str, source: str) -> list[tuple[str, ControllerSpec]]:
    """All controllers of one file: (where each came from, the spec).

    Raises:
        InputInvalid: anything that does not fit, in any document; also one name twice.
    """
    return specs.parse_all(text, source, parse)


def parse(data: Any, source: str) -> ControllerSpec:
    """One controller from a parsed document.

    Raises:
        InputInvalid: naming the file, the field, what was found and what was expected.
    """
    spec = codec.parse_input(ControllerSpec, data, source)
    specs.check_common(spec, source)
    if spec.replicas is not None:
        specs.check_count(spec.replicas, f"{source}: replicas")
    for name, amount in (
        ("replicas_per_node", spec.replicas_per_node),
        ("max_unavailable", spec.max_unavailable),
    ):
        specs.check_count(amount, f"{source}: {name}", lowest=1)
    specs.check_seconds(spec.unhealthy_after, f"{source}: unhealthy_after")
    specs.check_seconds(spec.transfer_timeout, f"{source}: transfer_timeout", lowest=1.0)
    specs.check_seconds(spec.min_healthy_time, f"{source}: min_healthy_time")
    return spec


def record(
    spec: ControllerSpec, rc_id: str, sha: str, existing: ReplicationController | None = None
) -> ReplicationController:
    """The record that a spec stands for; what it leaves open is taken from ``existing``.

    Raises:
        InputInvalid: a new controller without ``replicas``.
    """
    if spec.replicas is None and existing is None:
        raise InputInvalid(
            f"{spec.name}: replicas: missing, expected a whole number, 0 or more", field="replicas"
        )
    kept_count = existing.replicas_desired if existing is not None else 0
    kept_disabled = existing.disabled if existing is not None else False
    wanted = ReplicationController(
        id=rc_id,
        name=spec.name,
        manifest=sha,
        replicas_desired=kept_count if spec.replicas is None else spec.replicas,
        pod_id=spec.pod.id,
        node_selector=specs.canonical_selector(spec.node_selector, f"{spec.name}: node_selector"),
        labels=spec.labels,
        pod_labels=spec.pod_labels,
        disabled=kept_disabled if spec.disabled is None else spec.disabled,
        strategy=spec.strategy,
        replicas_per_node=spec.replicas_per_node,
        max_unavailable=spec.max_unavailable,
        on_lost=spec.on_lost,
        unhealthy_after=spec.unhealthy_after,
        transfer_timeout=spec.transfer_timeout,
        min_healthy_time=spec.min_healthy_time,
        needs=spec.needs,
    )
    if existing is None:
        return wanted
    return msgspec.structs.replace(wanted, managed_by=existing.managed_by, deleting=existing.deleting)


def as_file(rc: ReplicationController, manifest: Manifest) -> dict[str, Any]:
    """A record as the document that a person would write; ``parse`` of it gives the same controller."""
    spec = ControllerSpec(
        name=rc.name,
        pod=manifest,
        replicas=rc.replicas_desired,
        node_selector=rc.node_selector,
        labels=rc.labels,
        pod_labels=rc.pod_labels,
        replicas_per_node=rc.replicas_per_node,
        max_unavailable=rc.max_unavailable,
        strategy=rc.strategy,
        on_lost=rc.on_lost,
        unhealthy_after=rc.unhealthy_after,
        transfer_timeout=rc.transfer_timeout,
        min_healthy_time=rc.min_healthy_time,
        disabled=rc.disabled or None,
        needs=rc.needs,
    )
    document: dict[str, Any] = msgspec.to_builtins(spec)
    pod = document.pop("pod")
    return {**document, "pod": pod}
