"""``farmctl pod list | logs``."""

from __future__ import annotations

import click

from farmd.cli.lazy import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.pod_list:list_", "Pods by labels or node."),
    "logs": ("farmd.cli.pod_logs:logs", "What a pod wrote."),
}


@click.group("pod", cls=LazyGroup, lazy=_COMMANDS)
def pod() -> None:
    """Pods: list them, read their logs."""
