"""What the node allows to workloads with a view of their own on it: ``agent.allow``."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from farmd.agent.errors import StartFailed
from store import features
from store.manifests import Manifest


def as_features(allow: Sequence[str]) -> list[str]:
    """What the node's presence says of it (R11)."""
    return [f"allow.{each}" for each in allow]


def refuse_others(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> None:
    """Refuse what ``allow`` does not list; a link is judged by where it leads.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    resolved(manifest, allow, kept=kept)


def resolved(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> Manifest:
    """The manifest with binds of what their paths lead to now, which is what was judged.

    A workload may put a link in place of a folder that it can write to, so this is asked right before each
    start, and no path that is not resolved is passed on. ``kept`` is that of ``Launch``.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    mounts = [
        msgspec.structs.replace(mount, source=os.path.realpath(mount.source))
        if mount.type == "bind"
        else mount
        for mount in manifest.mounts
    ]
    real = msgspec.structs.replace(manifest, mounts=mounts)
    needs = [
        need for need in (*features.needed(manifest), *features.needed(real)) if need.startswith("allow.")
    ]
    lacking = [each.removeprefix("allow.") for each in features.lacking(needs, as_features(allow))]
    # As whom it runs is the users' matter.
    ignored = features.YOUNGER if kept else {features.ROOT}
    if what := ", ".join(each for each in dict.fromkeys(lacking) if each not in ignored):
        raise StartFailed(f"agent.allow: this node does not allow {what}", field="agent.allow")
    return real
