"""``farmctl service``: what people deploy, and names for pods that serve."""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup

_COMMANDS = {
    "run": ("farmd.cli.service_edit:run", "Deploy one service from an image."),
    "edit": ("farmd.cli.service_edit:edit", "Change a deployed service in an editor."),
    "scale": ("farmd.cli.service_edit:scale", "Change how many pods a service has."),
    "rollback": ("farmd.cli.service_edit:rollback", "Roll a service back to a revision."),
    "create": ("farmd.cli.service_edit:create", "Create a name for the pods that serve."),
    "catalog": (
        "farmd.cli.service_edit:catalog",
        "Publish the pods in Consul's catalogue and DNS, or stop it.",
    ),
    "list": ("farmd.cli.service_show:list_", "All services."),
    "get": ("farmd.cli.service_show:get", "One service; -o yaml prints the file that apply takes."),
    "describe": ("farmd.cli.service_show:describe", "One service with its endpoints and history."),
    "endpoints": ("farmd.cli.service_show:endpoints", "Address and port of each pod that serves."),
    "pods": ("farmd.cli.service_show:pods", "The pods of a service."),
    "history": ("farmd.cli.service_show:history", "The revisions of a service."),
    "logs": ("farmd.cli.service_show:logs", "The output of the pods of a service."),
    "explain": ("farmd.cli.service_show:explain", "Why each node does or does not get its pods."),
    "delete": ("farmd.cli.service_edit:delete", "Delete services; deployed ones together with their pods."),
}


@click.group("service", cls=LazyGroup, lazy=_COMMANDS)
def service() -> None:
    """Services: what was deployed, and names for the pods that serve, whichever controllers own them."""
