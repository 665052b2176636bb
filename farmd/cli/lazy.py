"""Groups that import a command's module only when it runs, so that ``farmctl --help`` starts fast."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import click

from farmd.cli.synonyms import IN_NOUNS, OTHER_VERBS
from farmd.kinds import load

Source = str | Callable[[], click.Command]
"""The source of a command: ``module:attribute``, or a function that makes it."""


class LazyGroup(click.Group):
    """A group over ``lazy``: name → (source of the command, its line in the help)."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[Source, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}

    def lazy(self) -> Mapping[str, tuple[Source, str]]:
        """The commands that exist now."""
        return self._lazy

    def aliases(self) -> Mapping[str, str]:
        """Other words for some of them that exist now; help does not list them."""
        own = {*self.lazy(), *self.commands}
        return {word: verb for word, verb in OTHER_VERBS.items() if verb in own and word not in own}

    def instead(self, word: str) -> str:
        """What to do in place of a word that is no command here; empty: unknown."""
        return IN_NOUNS.get(word, "")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which they were declared."""
        return [*self.lazy(), *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; the beginning of a name is not enough."""
        name, lazy = self.aliases().get(cmd_name, cmd_name), self.lazy()
        if name not in lazy:
            return super().get_command(ctx, name)
        source = lazy[name][0]
        command = load(source) if isinstance(source, str) else source()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve like click, but refuse an unknown name with the nearest known one."""
        known = [*self.list_commands(ctx), *self.aliases()]
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
            (name, command.get_short_help_str())
            for name, command in self.commands.items()
            if not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
