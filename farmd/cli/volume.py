"""``farmctl volume``: which node has the data of which volume."""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.volumes:list_", "All volumes, and the nodes that have them."),
    "create": ("farmd.cli.volumes:create", "Record that a node has a volume."),
    "delete": ("farmd.cli.volumes:delete", "Forget volumes; their data is kept."),
}


@click.group("volume", cls=LazyGroup, lazy=_COMMANDS)
def volume() -> None:
    """Volumes: which node has the data of which volume."""
