"""``farmctl pod list | describe | logs | restart``."""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.pod_show:list_", "Pods by labels or node."),
    "describe": ("farmd.cli.pod_show:describe", "One pod, what it runs, and how its last starts ended."),
    "logs": ("farmd.cli.pod_show:logs", "The output of a pod."),
    "restart": ("farmd.cli.pod_restart:restart", "Restart pods where they are."),
}


@click.group("pod", cls=LazyGroup, lazy=_COMMANDS)
def pod() -> None:
    """Pods: list and describe them, read their logs, restart them."""
