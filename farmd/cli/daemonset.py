"""``farmctl daemonset``: the group; its commands live in ``daemonset_show`` and ``daemonset_edit``."""

from __future__ import annotations

import click

from farmd.cli.lazy import LazyGroup

_COMMANDS = {
    "create": ("farmd.cli.daemonset_edit:create", "Create daemon sets from a file."),
    "list": ("farmd.cli.daemonset_show:list_", "All daemon sets."),
    "get": ("farmd.cli.daemonset_show:get", "One daemon set, also as a file."),
    "describe": ("farmd.cli.daemonset_show:describe", "One daemon set with its pods, owner and history."),
    "pods": ("farmd.cli.daemonset_show:pods", "The pods of a daemon set."),
    "explain": ("farmd.cli.daemonset_show:explain", "Why each node does or does not get its pod."),
    "update": ("farmd.cli.daemonset_edit:update", "Change daemon sets to what a file says."),
    "enable": ("farmd.cli.daemonset_edit:enable", "Let the farms work on it again."),
    "disable": ("farmd.cli.daemonset_edit:disable", "Keep the farms from adding and removing pods."),
    "delete": ("farmd.cli.daemonset_edit:delete", "Delete daemon sets."),
}


@click.group("daemonset", cls=LazyGroup, lazy=_COMMANDS)
def daemonset() -> None:
    """Daemon sets: one pod on every eligible node."""
