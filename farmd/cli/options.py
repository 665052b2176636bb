"""The options that farmctl's commands share, accepted before and after the command's name.

Options never carry a token: it comes from a file or from the environment. The values are collected in
``Settings``; the last place on the command line wins, and flags win over the environment.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from farmd.cli.help_examples import example
from farmd.cli.settings import META, Settings

_WHERE = frozenset({"http_addr", "token_file", "dc", "sign"})
_WHOLE = re.compile("-?[0-9]{1,18}")
OUTPUTS = ("table", "wide", "json", "yaml", "name")


class Duration(click.ParamType[float]):
    """Seconds, written as ``90``, ``500ms``, ``5m``, ``1h30m`` or ``2d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds from text."""
        from store.errors import InputInvalid
        from store.quantities import seconds

        try:
            return float(value) if isinstance(value, float | int) else seconds(value)
        except InputInvalid as error:
            self.fail(error.message, param, ctx)


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of a text."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self._refuse(repr(value), param, ctx)
        number = int(value)
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            self._refuse(str(number), param, ctx)
        return number

    def _refuse(self, found: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        limits = "" if self.min is None else f" of at least {self.min}"
        if self.min is not None and self.max is not None:
            limits = f" from {self.min} to {self.max}"
        self.fail(f"found {found}, expected a whole number{limits}", param, ctx)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name is not None
    source = ctx.get_parameter_source(param.name)
    if value == "" and source is click.core.ParameterSource.COMMANDLINE and param.name in _WHERE:
        # As a script's variable that is not set: the command would go to another cluster without a word.
        raise click.BadParameter("found an empty text, expected a value", ctx, param)
    if source is not None and source is not click.core.ParameterSource.DEFAULT:
        ctx.meta.setdefault(META, {})[param.name] = value


def _option(*names: str, **kwargs: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **kwargs)


def shared(*, root: bool = False) -> list[click.Option]:
    """The options of every command: the store's address, and the form of the output."""
    env = {"envvar": "FARMCTL_ADDR"} if root else {}
    token = {"envvar": "FARMCTL_TOKEN_FILE"} if root else {}
    return [
        _option("--http-addr", metavar="ADDRESS", help="Consul's address; default: CONSUL_HTTP_ADDR.", **env),
        _option(
            "--token-file",
            type=click.Path(),
            help="File with the ACL token; default: CONSUL_HTTP_TOKEN(_FILE).",
            **token,
        ),
        _option("--dc", metavar="NAME", help="Datacenter; default: CONSUL_HTTP_DC, else Consul's own."),
        _option("-o", "--output", type=click.Choice(OUTPUTS), help="Output format."),
        _option("-q", "--quiet", is_flag=True, help="Print only errors on stderr."),
        _option("-v", "--verbose", is_flag=True, help="More detail on errors."),
        _option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same."),
    ]


def watching() -> list[click.Option]:
    """The options of lists."""
    return [_option("-w", "--watch", is_flag=True, help="Show it again after each change, until ^C.")]


def everywhere() -> list[click.Option]:
    """The options of what is shown of all datacenters in one table."""
    return [_option("--all-dcs", is_flag=True, help="Ask every datacenter; the column DC says which it is.")]


def mutating() -> list[click.Option]:
    """The options of commands that write."""
    return [
        _option("--dry-run", is_flag=True, help="Show what would change, write nothing."),
        _option("-y", "--yes", is_flag=True, help="Do not ask; needed for destructive changes in scripts."),
        _option("--reason", metavar="TEXT", help="The reason, kept in the audit log."),
        _option("--force", is_flag=True, help="Break the item's mutation lock; needs --reason."),
    ]


def waiting() -> list[click.Option]:
    """The options of changes that take effect later."""
    return [
        _option("--wait/--no-wait", default=None, help="Wait until the change has taken effect."),
        _option(
            "--timeout",
            "given_timeout",
            type=Duration(),
            help="How long to wait before exit code 8.  [default: 5m; no limit for what has a deadline]",
        ),
    ]


def signing() -> list[click.Option]:
    """The options of changes that let pods start."""
    return [
        _option("--sign", metavar="KEYFILE", type=click.Path(), help="Sign what will start, with this key."),
        _option(
            "--sign-for",
            type=Duration(),
            help="How long a signed pod may wait for its first start.  [default: 90d]",
        ),
    ]


class Exampled(click.Command):
    """A command whose help ends in an example."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """An example of how it is typed."""
        if found := example(ctx.command_path):
            with formatter.section("Example"):
                formatter.write(f"{'':>{formatter.current_indent}}{found}\n")


class Command(Exampled):
    """A command that calls ``function``; its help shows the shared options in a section of their own."""

    def __init__(
        self,
        *args: Any,
        function: Callable[..., Any],
        common: Sequence[click.Option] = (),
        mutates: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.callback, self.function, self.mutates = self._run, function, mutates
        self._common = list(common)
        self.params = [*self.params, *self._common]

    def _run(self, /, **params: Any) -> None:
        from farmd.cli.invocation import run

        settings, function = Settings.of(click.get_current_context()), self.function
        if settings.all_dcs or settings.dc or os.environ.get("CONSUL_HTTP_DC"):
            from farmd.cli.datacenters import elsewhere

            function = elsewhere(function)
        run(settings, function, params, mutates=self.mutates)

    def add_own(self, params: Sequence[click.Parameter]) -> None:
        """Give it more parameters of its own, behind those that it has."""
        own = len(self.params) - len(self._common)
        self.params[own:own] = params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a command's own option that is given twice but has one value; click would drop the first.

        Of a shared option the last place wins.
        """
        # A number such as -1 is a value, and reported as a bad one; any other unknown option is refused.
        ctx.ignore_unknown_options &= any(text[:1] == "-" and text[1:2].isdigit() for text in args)
        try:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # whose help is the hint
            raise
        for param in self.params:
            single = isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
            if single and param not in self._common and given.count(param) > 1:
                ctx.fail(f"{param.opts[-1]} is given {given.count(param)} times, expected once.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first."""
        for title, chosen in (
            ("Options", [p for p in self.get_params(ctx) if p not in self._common]),
            ("Shared options", self._common),
        ):
            rows = [row for row in (param.get_help_record(ctx) for param in chosen) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def command(
    name: str,
    *,
    lists: bool = False,
    mutates: bool = False,
    waits: bool = False,
    signs: bool = False,
    negative_numbers: bool = False,
    trailing: bool = False,
    reasons: bool = False,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of ``async def f(invocation, **own options)``; its docstring is the help,
    but for what it raises.

    ``reasons``: it is audited and changes no record. ``trailing``: what stands behind the first argument
    belongs to the last one, options included.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        common = shared()
        common += watching() if lists else []
        common += everywhere() if lists and name == "list" else []
        common += mutating() if mutates else []
        common += [each for each in mutating() if each.name == "reason"] if reasons else []
        common += waiting() if waits else []
        common += signing() if signs else []
        params = list(reversed(getattr(function, "__click_params__", [])))
        return Command(
            name,
            function=function,
            mutates=mutates,
            params=params,
            help=inspect.cleandoc(function.__doc__ or "").partition("\n\nRaises:")[0],
            common=common,
            # Without this click reports -1 as an unknown option, where a person wrote a bad number.
            context_settings={
                "ignore_unknown_options": negative_numbers,
                "allow_interspersed_args": not trailing,
            },
        )

    return decorate
