"""Pods: who owns what. ``pods/<owner>/<node>/<instance>``, owner first, so that "my pods" is one read."""

from __future__ import annotations

import msgspec


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One pod of an owner: its labels and the digest of the manifest that it should run.

    ``at`` is when it was placed (seconds since the epoch): removal takes the newest first.
    """

    manifest: str
    labels: dict[str, str] = {}
    at: float = 0.0


class PodKey(msgspec.Struct, frozen=True, order=True):
    """Where a pod stands; ``owner`` is ``<id>`` of its controller."""

    owner: str
    node: str
    instance: str
