"""Daemon sets, one pod on every eligible node: the record (p2 ``pkg/ds``).

There is no count: the number of eligible nodes decides. An empty fleet, or a selector that matches no
node, must never remove a pod: the worker's plan makes sure of that (``farmd/daemonset/plan.py``).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from store.named import stays
from store.policies import Part, Policy, at_least, at_most
from store.quantities import Share
from store.rcs import Reverted
from store.times import Time

KIND = "daemonsets"
DAEMON_SET_ID_LABEL = "daemon_set_id"

Floor = Annotated[int, msgspec.Meta(ge=0)] | Share


class DaemonSet(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Keep one pod of ``manifest`` on every node that is eligible and matches ``node_selector``.

    ``labels`` are the daemon set's own, ``pod_labels`` those of its pods. While the manifest changes, at
    least ``min_health`` pods stay healthy: a number, or a share such as ``"90%"``, rounded up; None: all but
    one, or all but ``max_unavailable``, a number or a share, rounded down to one at least. ``rate`` limits
    how many nodes get a pod or another manifest in a minute (0: no limit), ``max_in_progress`` how many pods
    may become healthy at the same time. ``needs`` are the features that a farm must know to claim the daemon
    set (R11). ``deleting`` is set when a cascading delete is asked for; the daemon set wants no pods then.
    ``min_healthy_time``: seconds that a pod must be healthy without a break before it is available (R22).
    ``restart`` counts the restarts of all pods that were asked for (R28). ``unhealthy_after``: seconds until
    a pod that runs and stays unhealthy is restarted in place (0: never). ``managed_by``, ``taken``,
    ``hands``, ``numbered``, ``part_of``, ``open`` and ``follow`` are as a controller's. ``created``: 0 in
    records of earlier versions.

    ``rollout`` is how a new version comes to its pods; None: in place, at the pace of this record. Nodes that
    ``canary_selector`` matches get it first. While a rollout lasts, ``coming`` is the digest of the new
    version, and ``coming_to`` on how many nodes, or on which share of them, it shall run; ``coming_held``: no
    pod is replaced now. ``superseded`` are the digests of versions in whose place a person put it: their pods
    wait for it, and get it first. ``coming_beside``: its pods start beside those that they replace, which
    leave once these are available. ``reverted`` is the last version that failed, until another one is rolled
    out.
    """

    id: str
    name: str
    manifest: Annotated[str, msgspec.Meta(min_length=1)]
    pod_id: str = ""
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    disabled: bool = False
    min_health: Floor | None = None
    max_unavailable: Annotated[int, msgspec.Meta(ge=1)] | Share | None = None
    rate: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_in_progress: Annotated[int, msgspec.Meta(ge=1)] = 50
    needs: list[str] = []
    deleting: bool = False
    min_healthy_time: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    restart: Annotated[int, msgspec.Meta(ge=0)] = 0
    unhealthy_after: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    created: Time = 0.0
    managed_by: str = ""
    taken: bool = False
    hands: int = 0
    numbered: bool = False
    part_of: str = ""
    open: list[str] = []
    rollout: Policy | None = None
    canary_selector: str = ""
    coming: str = ""
    coming_to: Part = 0
    coming_held: bool = False
    superseded: list[str] = []
    coming_beside: bool = False
    reverted: Reverted | None = None
    follow: bool = False

    @property
    def manifests(self) -> tuple[str, ...]:
        """The digest of its manifest, and of the one that is coming."""
        return (self.manifest, self.coming) if self.coming else (self.manifest,)

    @property
    def failed(self) -> str:
        """Which version failed and why, as long as the one before it is there; empty: none did."""
        return self.reverted.told(self.name) if self.reverted and self.reverted.kept == self.manifest else ""

    def renewed(self, nodes: int) -> int:
        """On how many of so many nodes the version that is coming shall run."""
        return min(nodes, at_least(self.coming_to, nodes)) if self.coming else 0

    @property
    def wants_pods(self) -> bool:
        """Whether its worker may add pods; only a record that wants no pods may be deleted."""
        return not self.disabled and not self.deleting

    @property
    def count(self) -> None:
        """None: the number of eligible nodes decides."""

    @property
    def stays(self) -> str:
        """Why its worker removes no pod from a node; empty if it does."""
        return stays(self)

    def floor(self, desired: int) -> int:
        """How many pods must stay healthy on ``desired`` nodes."""
        if self.min_health is None:
            most = 1 if self.max_unavailable is None else at_most(self.max_unavailable, desired)
            return max(0, desired - max(1, most))
        if isinstance(self.min_health, int):
            return self.min_health
        return -(-desired * int(self.min_health.removesuffix("%")) // 100)

    def standstill(self, desired: int) -> str:
        """Why none of ``desired`` serving pods may be replaced, and how to change that; empty: one may."""
        floor = self.floor(desired)
        if not 0 < desired <= floor:
            return ""
        return (
            f"min_health {self.min_health} keeps all of {desired} pods; set it to {desired - 1} or less"
            " to replace one at a time"
        )
