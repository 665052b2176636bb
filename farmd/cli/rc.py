"""``farmctl rc``: the group; its commands live in ``rc_show`` (reading) and ``rc_edit`` (writing)."""

from __future__ import annotations

import click

from farmd.cli.lazy import LazyGroup

_COMMANDS = {
    "create": ("farmd.cli.rc_edit:create", "Create controllers from a file."),
    "list": ("farmd.cli.rc_show:list_", "All controllers."),
    "get": ("farmd.cli.rc_show:get", "One controller, also as a file."),
    "describe": ("farmd.cli.rc_show:describe", "One controller with its pods, owner and history."),
    "pods": ("farmd.cli.rc_show:pods", "The pods of a controller."),
    "explain": ("farmd.cli.rc_show:explain", "Why each node does or does not get its pods."),
    "set-replicas": ("farmd.cli.rc_edit:set_replicas", "Set how many pods there should be."),
    "update": ("farmd.cli.rc_edit:update", "Change controllers to what a file says."),
    "enable": ("farmd.cli.rc_edit:enable", "Let the farms work on it again."),
    "disable": ("farmd.cli.rc_edit:disable", "Keep the farms from adding and removing pods."),
    "delete": ("farmd.cli.rc_edit:delete", "Delete controllers."),
}


@click.group("rc", cls=LazyGroup, lazy=_COMMANDS)
def rc() -> None:
    """Replication controllers: keep N copies of a pod on eligible nodes."""
