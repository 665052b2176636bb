"""``farmctl daemonset``: the commands that every noun has."""

from __future__ import annotations

from farmd.cli.nouns import group

daemonset = group("daemonsets", "Daemon sets: one pod on every eligible node.")
