"""``farmctl service``: names for pods that serve."""

from __future__ import annotations

import click

from farmd.cli.lazy import LazyGroup

_COMMANDS = {
    "create": ("farmd.cli.service_edit:create", "Name the pods that serve."),
    "list": ("farmd.cli.service_show:list_", "All services."),
    "describe": ("farmd.cli.service_show:describe", "One service with its endpoints and history."),
    "endpoints": ("farmd.cli.service_show:endpoints", "Address and port of each pod that serves."),
    "delete": ("farmd.cli.service_edit:delete", "Delete services; the pods stay."),
}


@click.group("service", cls=LazyGroup, lazy=_COMMANDS)
def service() -> None:
    """Services: names for the pods that serve, whichever controllers own them."""
