"""``farmctl rc``: the commands that every noun has, ``scale`` and ``history``."""

from __future__ import annotations

from farmd.cli.groups import group

rc = group(
    "rcs",
    {
        "scale": ("farmd.cli.rc_edit:set_replicas", "Set how many pods there should be (set-replicas)."),
        "set-replicas": ("farmd.cli.rc_edit:set_replicas", "The same."),
        "history": ("farmd.cli.rollout_show:history", "The rollouts of a controller that are over."),
    },
)
