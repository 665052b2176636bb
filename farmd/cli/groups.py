"""Groups of ``farmctl``, and those of every noun; a command's module is imported only when it runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from farmd import cli
from farmd.cli.synonyms import IN_NOUNS, OTHER_VERBS
from farmd.kinds import KINDS, asked

if TYPE_CHECKING:
    from farmd.commands.noun import Noun

# Groups that import a command's module only when it runs, so that ``farmctl --help`` starts fast.

Source = Callable[[], click.Command]
"""The source of a command: ``lambda: cli.apply.diff``, or a function that makes it."""

Commands = Mapping[str, tuple[Source, str]]
"""Names of commands, each with its source and its line in the help."""

Maker = Callable[[], Callable[["Noun[Any, Any]"], click.Command]]
"""The source of the function that makes a command of a noun."""


_WHOLE_SENTENCE = 300
"""The letters of a command's line in the help, which is folded and never cut."""


class LazyGroup(click.Group):
    """A group over the commands that ``lazy`` returns."""

    def __init__(self, *args: Any, lazy: Callable[[], Commands] = dict, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def lazy(self) -> Commands:
        """The commands that exist now."""
        return self._lazy()

    def aliases(self) -> Mapping[str, str]:
        """Other words for some of them that exist now; help does not list them."""
        own = {*self.lazy(), *self.commands}
        return {word: verb for word, verb in OTHER_VERBS.items() if verb in own and word not in own}

    def instead(self, word: str) -> str:
        """What to do in place of a word that is no command here; empty: unknown."""
        return IN_NOUNS.get(f"{self.name} {word}", "") or IN_NOUNS.get(word, "")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which they were declared."""
        return [*self.lazy(), *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; the beginning of a name is not enough."""
        name, lazy = self.aliases().get(cmd_name, cmd_name), self.lazy()
        if name not in lazy:
            return super().get_command(ctx, name)
        return lazy[name][0]()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve like click, but refuse an unknown name with the nearest known one."""
        known = [*self.list_commands(ctx), *self.aliases()]
        if args[0] == "help" and "help" not in known:
            args = [*args[1:], "--help"]
        word = args[0]
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            if instead := self.instead(word):
                ctx.fail(f"No such command {word!r}: {instead}")
            near = difflib.get_close_matches(word, known, n=1)
            ctx.fail(f"No such command {word!r}{f', did you mean {near[0]!r}?' if near else '.'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        rows = [(name, line) for name, (_, line) in self.lazy().items()]
        rows += [
            (name, command.get_short_help_str(_WHOLE_SENTENCE))
            for name, command in self.commands.items()
            if not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


# The group of commands of one noun, such as ``farmctl rc``, built from the registry of kinds.
#
# Only click is imported until a command is used: then the kind's ``Noun``, and the module that makes the
# command from it.

_CREATING = {
    "create": (lambda: cli.noun_edit.creating, "Create {many} from a file."),
}
_READING = {
    "list": (lambda: cli.noun_show.listing, "All {many}."),
    "get": (lambda: cli.noun_show.seeing, "One {one}."),
    "describe": (lambda: cli.noun_show.describing, "One {one} with its owner and history."),
}
_OF_PODS = {
    "describe": (lambda: cli.noun_show.describing, "One {one} with its pods, owner and history."),
    "pods": (lambda: cli.noun_show.pods, "The pods of a {one}."),
    "logs": (lambda: cli.logs.showing, "The output of the pods of a {one}."),
    "explain": (lambda: cli.noun_show.explaining, "Why each node does or does not get its pods."),
}
_CHANGING_PODS = {
    "restart": (lambda: cli.noun_edit.restarting, "Restart the pods of a {one}, a few at a time."),
}
_CHANGING = {
    "get": (lambda: cli.noun_show.getting, "One {one}, also as a file."),
    "update": (lambda: cli.noun_edit.updating, "Change {many} from a file."),
    "edit": (lambda: cli.noun_editor.editing, "Change a {one} in your editor."),
    "diff": (lambda: cli.noun_editor.comparing, "What a file would change in {many}."),
    "enable": (lambda: cli.noun_edit.enabling, "Let the farms act on a {one} again."),
    "disable": (lambda: cli.noun_edit.disabling, "Keep the farms from acting on a {one}."),
    "delete": (lambda: cli.noun_edit.deleting, "Delete {many}."),
}


def group(kind: str, more: Callable[[], Commands] = dict, *, edited: bool = True) -> click.Group:
    """The group of a kind's noun; ``more`` returns the commands that only it has.

    ``edited``: people create, change and delete its items by files and switches.
    """
    words = KINDS[kind]

    def lazy() -> Commands:
        found = made(_CREATING) if edited else {}
        found |= made(_READING) | (made(_OF_PODS) if words.owns_pods else {}) | dict(more())
        found |= made(_CHANGING) if edited else {}
        found |= made(_CHANGING_PODS) if words.owns_pods and edited else {}
        return {
            verb: (source, line.format(one=words.one, many=words.many))
            for verb, (source, line) in found.items()
        }

    def made(verbs: Mapping[str, tuple[Maker, str]]) -> dict[str, tuple[Source, str]]:
        return {verb: (partial(_made, kind, maker), line) for verb, (maker, line) in verbs.items()}

    return LazyGroup(words.noun, help=words.title, lazy=lazy)


def _made(kind: str, maker: Maker) -> click.Command:
    """A command of a kind's noun."""
    return maker()(asked(kind))
