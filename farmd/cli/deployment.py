"""``farmctl deployment``: the commands of every noun that is read."""

from __future__ import annotations

from farmd.cli.nouns import group

deployment = group("deployments", edited=False)
