"""Replication controllers: the record, and its repository (p2 ``pkg/rc/fields``, ``rcstore``).

The desired count is required when a record is decoded: its absence is an error while 0 is legal, so
that no slip of a schema can ever scale a fleet to nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Strategy = Literal["static", "dynamic"]
OnLost = Literal["replace", "wait"]


class ReplicationController(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Keep ``replicas_desired`` copies of one manifest on nodes that match ``node_selector``.

    ``labels`` are the RC's own, for farms that select; ``pod_labels`` go onto its pods.
    ``managed_by`` names the rollout that owns the membership (R14), ``needs`` the features that a
    farm must know to claim it (R11). ``on_lost``: what happens to pods on a lost node (R21).
    """

    id: str
    name: str
    manifest: str
    replicas_desired: int
    pod_id: str = ""
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    disabled: bool = False
    strategy: Strategy = "static"
    replicas_per_node: int = 1
    max_unavailable: int = 1
    on_lost: OnLost = "replace"
    managed_by: str = ""
    needs: list[str] = []
