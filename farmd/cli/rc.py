"""``farmctl rc``: the commands that every noun has, ``scale`` and ``history``."""

from __future__ import annotations

from farmd.cli.groups import group

rc = group(
    "rcs",
    {
        "scale": ("farmd.cli.rc_edit:set_replicas", "Set the number of pods (set-replicas)."),
        "set-replicas": ("farmd.cli.rc_edit:set_replicas", "The same."),
        "history": ("farmd.cli.rollout_show:history", "Past rollouts of a controller."),
    },
)
