"""``farmctl rc``: the commands that every noun has, and ``set-replicas``."""

from __future__ import annotations

from farmd.cli.nouns import group

rc = group("rcs", {"set-replicas": ("farmd.cli.rc_edit:set_replicas", "Set how many pods there should be.")})
