"""What the node allows to workloads with a view of their own on it: ``agent.allow``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from farmd.agent.errors import StartFailed
from store import features
from store.manifests import Manifest


def as_features(allow: Sequence[str]) -> list[str]:
    """What the node's presence says of it (R11)."""
    return [f"allow.{each}" for each in allow]


def refuse_others(manifest: Manifest, allow: Sequence[str]) -> None:
    """Refuse what ``allow`` does not list; a link is judged by where it leads.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    real = [f"allow.{os.path.realpath(mount.source)}" for mount in manifest.mounts if mount.type == "bind"]
    needs = [need for need in (*features.needed(manifest), *real) if need.startswith("allow.")]
    if lacking := features.lacking(needs, as_features(allow)):
        what = ", ".join(each.removeprefix("allow.") for each in dict.fromkeys(lacking))
        raise StartFailed(f"agent.allow: this node does not allow {what}", field="agent.allow")
