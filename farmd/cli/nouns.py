"""The group of commands of one noun, such as ``farmctl rc``, built from the registry of kinds.

Only click is imported until a command is used: then the kind's ``Noun``, and the module that makes the
command from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from farmd.cli.lazy import LazyGroup, Source
from farmd.kinds import KINDS, load

_CREATING = {
    "create": ("farmd.cli.noun_edit:creating", "Create {many} from a file."),
}
_READING = {
    "list": ("farmd.cli.noun_show:listing", "All {many}."),
    "get": ("farmd.cli.noun_show:seeing", "One {one}."),
    "describe": ("farmd.cli.noun_show:describing", "One {one} with its owner and history."),
}
_OF_PODS = {
    "describe": ("farmd.cli.noun_show:describing", "One {one} with its pods, owner and history."),
    "pods": ("farmd.cli.noun_show:pods", "The pods of a {one}."),
    "logs": ("farmd.cli.noun_logs:showing", "What the pods of a {one} wrote."),
    "explain": ("farmd.cli.noun_show:explaining", "Why each node does or does not get its pods."),
}
_CHANGING_PODS = {
    "restart": ("farmd.cli.noun_edit:restarting", "Restart the pods of a {one}, a few at a time."),
}
_CHANGING = {
    "get": ("farmd.cli.noun_show:getting", "One {one}, also as a file."),
    "update": ("farmd.cli.noun_edit:updating", "Change {many} to what a file says."),
    "edit": ("farmd.cli.noun_editor:editing", "Change a {one} in your editor."),
    "diff": ("farmd.cli.noun_diff:comparing", "What a file would change of {many}."),
    "enable": ("farmd.cli.noun_edit:enabling", "Let the farms act on a {one} again."),
    "disable": ("farmd.cli.noun_edit:disabling", "Keep the farms from acting on a {one}."),
    "delete": ("farmd.cli.noun_edit:deleting", "Delete {many}."),
}


def group(
    kind: str, more: Mapping[str, tuple[str, str]] | None = None, *, edited: bool = True
) -> click.Group:
    """The group of a kind's noun; ``more`` are commands that only it has.

    ``edited``: people create, change and delete its items by files and switches.
    """
    words = KINDS[kind]

    def made(verbs: Mapping[str, tuple[str, str]]) -> dict[str, tuple[Source, str]]:
        return {verb: (_maker(words.asked, path), line) for verb, (path, line) in verbs.items()}

    own: dict[str, tuple[Source, str]] = dict(more or {})
    lazy = made(_CREATING) if edited else {}
    lazy |= made(_READING) | (made(_OF_PODS) if words.owns_pods else {}) | own
    lazy |= made(_CHANGING) if edited else {}
    lazy |= made(_CHANGING_PODS) if words.owns_pods and edited else {}
    lines = {
        verb: (source, line.format(one=words.one, many=words.many)) for verb, (source, line) in lazy.items()
    }
    return LazyGroup(words.noun, help=words.title, lazy=lines)


def _maker(noun: str, path: str) -> Callable[[], click.Command]:
    """A function that imports a noun and makes a command of it."""

    def make() -> click.Command:
        made = load(path)(load(noun))
        assert isinstance(made, click.Command)
        return made

    return make
