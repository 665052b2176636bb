"""The file of a replication controller, as people write it (docs/cli.md)."""

from __future__ import annotations

import msgspec

from farmd.commands import specs
from farmd.commands.specs import check_policy
from store.manifests import Manifest
from store.policies import Policy
from store.quantities import Seconds
from store.rcs import OnLost, ReplicationController, Strategy


class ControllerSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of an RC file; ``replicas`` may be left out where a controller exists already."""

    name: str
    pod: Manifest
    replicas: int | None = None
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    replicas_per_node: int = 1
    max_unavailable: int | str = 1
    strategy: Strategy = "static"
    on_lost: OnLost = "replace"
    unhealthy_after: Seconds = 300.0
    transfer_timeout: Seconds = 300.0
    min_healthy_time: Seconds = 10.0
    disabled: bool | None = None
    needs: list[str] = []
    rollout: Policy | None = None


def _check(spec: ControllerSpec, source: str) -> None:
    if spec.replicas is not None:
        specs.check_count(spec.replicas, f"{source}: replicas")
    specs.check_count(spec.replicas_per_node, f"{source}: replicas_per_node", lowest=1)
    specs.check_share(spec.max_unavailable, f"{source}: max_unavailable")
    specs.check_seconds(spec.unhealthy_after, f"{source}: unhealthy_after")
    specs.check_seconds(spec.transfer_timeout, f"{source}: transfer_timeout", lowest=1.0)
    if spec.rollout is not None:
        check_policy(spec.rollout, f"{source}: rollout")


FILE = specs.SpecFile(
    spec=ControllerSpec,
    record=ReplicationController,
    check=_check,
    names={"replicas": "replicas_desired"},
    kept={"replicas": "a whole number, 0 or more", "disabled": ""},
    shares={"max_unavailable": "max_unavailable_percent"},
)
