"""Replication controllers: the record, and its repository (p2 ``pkg/rc/fields``, ``rcstore``).

A record without a desired count does not decode, although 0 is legal: a mistake in the schema must
never scale a fleet to nothing.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import msgspec

from store.keys import Keys
from store.named import NamedRecords, stays
from store.policies import Policy
from store.ports import KeyReader
from store.times import Time

KIND = "rcs"
# What a farm must know to place the pods of a controller whose instances are numbered (R11).
NUMBERED = "numbered.1"

Strategy = Literal["static", "dynamic"]
OnLost = Literal["replace", "wait"]


class Reverted(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The rollout of ``manifest`` that failed and went back to ``kept``, and why."""

    manifest: str
    kept: str
    reason: str = ""
    at: Time = 0.0

    def told(self, name: str) -> str:
        """What people are alerted of, of an owner of that name."""
        return f"rollout {name} to {self.manifest[:12]}: {self.reason}"


def failure_alert(name: str) -> str:
    """The incident key of a version that failed on a controller of that name."""
    return f"rollout_{name}"


class ReplicationController(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Keep ``replicas_desired`` copies of one manifest on nodes that match ``node_selector``.

    ``labels`` are the RC's own, for the selectors of farms; ``pod_labels`` are those of its pods.
    ``managed_by`` names what alone changes the membership (R14), as ``rollouts/<id>``; while ``taken`` it
    is also the only writer of the pods, and ``hands`` grows by one with each change of ``taken``. ``needs``
    are the features that a farm must know to claim the RC (R11). ``on_lost``: what happens to pods on a
    lost node (R21). ``unhealthy_after``: seconds until a pod that stays unhealthy is replaced (0: never).
    ``transfer_timeout``: seconds in which a pod on its new node must become healthy. ``min_healthy_time``:
    seconds that a pod must be healthy without a break before it is available (R22).
    ``restart`` counts the restarts of all pods that were asked for (R28).
    ``numbered``: pods are named ``<pod>~<n>``, so that those of two versions can stand on one node.
    ``rollout`` is how a new version comes to its pods; None: by the defaults. ``reverted`` is the last
    version that failed, until another one is rolled out. ``left_open``: alerts that the last rollout left
    open although they are over, by incident key, with their urgency; the RC's worker ends them.
    ``part_of``: what it belongs to, as ``services/<id>``; then other edits are refused, save those of the
    fields that are ``open``.
    ``deleting`` is set when a cascading delete is asked for; the count is 0 then.
    ``max_unavailable_percent``: 1 to 100 where ``max_unavailable`` is a share of the count, else 0.
    ``created``: 0 in records of earlier versions. ``follow``: a farm begins a rollout when a config key that
    the manifest refers to has another value (R41).
    """

    id: str
    name: str
    manifest: Annotated[str, msgspec.Meta(min_length=1)]
    replicas_desired: Annotated[int, msgspec.Meta(ge=0)]
    pod_id: str = ""
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    disabled: bool = False
    strategy: Strategy = "static"
    replicas_per_node: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_unavailable: Annotated[int, msgspec.Meta(ge=1)] = 1
    on_lost: OnLost = "replace"
    managed_by: str = ""
    taken: bool = False
    hands: int = 0
    numbered: bool = False
    rollout: Policy | None = None
    reverted: Reverted | None = None
    left_open: dict[str, str] = {}
    needs: list[str] = []
    deleting: bool = False
    unhealthy_after: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    transfer_timeout: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    min_healthy_time: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    created: Time = 0.0
    max_unavailable_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    restart: Annotated[int, msgspec.Meta(ge=0)] = 0
    part_of: str = ""
    open: list[str] = []
    follow: bool = False

    @property
    def manifests(self) -> tuple[str, ...]:
        """The digest of its one manifest."""
        return (self.manifest,)

    @property
    def unavailable_limit(self) -> int:
        """How many of its pods farmd itself may make unavailable: a share is rounded down, and at least 1.

        Beside a share ``max_unavailable`` is 1. Another number there is later than the share: a person wrote
        it with an earlier version, which keeps the share and does not know it.
        """
        if self.max_unavailable_percent and self.max_unavailable == 1:
            return max(1, self.replicas_desired * self.max_unavailable_percent // 100)
        return self.max_unavailable

    @property
    def count(self) -> int:
        """How many pods it asks for."""
        return self.replicas_desired

    @property
    def failed(self) -> str:
        """Which version failed and why, as long as the one before it is there; empty: none did."""
        if self.reverted is None or self.reverted.kept != self.manifest:
            return ""
        return self.reverted.told(self.name)

    @property
    def stays(self) -> str:
        """Why its worker removes no pod from a node; empty if it does."""
        return stays(self)


# Most RCs have these fields empty and share one object, which is safe: no record is changed in place.
_NOTHING: dict[str, str] = {}
_NEEDS: list[str] = []


def small(rc: ReplicationController) -> ReplicationController:
    """The same RC with shared strings and empty fields, which saves memory for tens of thousands of RCs."""
    return msgspec.structs.replace(
        rc,
        id=sys.intern(rc.id),
        name=sys.intern(rc.name),
        pod_id=sys.intern(rc.pod_id),
        node_selector=sys.intern(rc.node_selector),
        manifest=sys.intern(rc.manifest),
        labels=rc.labels or _NOTHING,
        pod_labels=rc.pod_labels or _NOTHING,
        left_open=rc.left_open or _NOTHING,
        needs=rc.needs or _NEEDS,
        open=rc.open or _NEEDS,
    )


class ReplicationControllerStore(NamedRecords[ReplicationController]):
    """Reads RCs and builds the operations that change them (p2 ``rcstore``).

    ``delete`` is safe only for a count of 0.
    """

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        super().__init__(client, keys, KIND, ReplicationController, "rc")
