"""``farmctl app``: the group; its commands live in ``app_show`` and ``app_words``."""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.app_show:list_", "All apps."),
    "get": ("farmd.cli.app_show:get", "The documents of an app's revision, as a file."),
    "describe": ("farmd.cli.app_show:describe", "One app with its objects."),
    "history": ("farmd.cli.app_show:history", "The revisions that are kept, newest first."),
    "explain": ("farmd.cli.app_show:explain", "Which app owns an object, and its state."),
    "rollback": ("farmd.cli.app_edit:rollback", "Go back to an earlier revision."),
    "pause": ("farmd.cli.app_edit:pause", "Keep the farms from touching an app's objects."),
    "resume": ("farmd.cli.app_edit:resume", "Let the farms continue."),
    "release": (
        "farmd.cli.app_edit:release",
        "Keep objects that are no longer in the files, without an owner.",
    ),
    "delete": ("farmd.cli.app_edit:delete", "Delete an app with its objects."),
}


@click.group("app", cls=LazyGroup, lazy=_COMMANDS)
def app() -> None:
    """Apps: bundles of objects that farms apply, keep and prune together."""
