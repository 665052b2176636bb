"""``farmctl pod list | logs | restart``."""

from __future__ import annotations

import click

from farmd.cli.lazy import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.pod_list:list_", "Pods by labels or node."),
    "logs": ("farmd.cli.pod_logs:logs", "What a pod wrote."),
    "restart": ("farmd.cli.pod_restart:restart", "Restart pods where they are."),
}


@click.group("pod", cls=LazyGroup, lazy=_COMMANDS)
def pod() -> None:
    """Pods: list them, read their logs, restart them."""
