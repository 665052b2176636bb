"""Names of objects on the command line: bare or as ``-o name`` prints them, and their completion.

Completion asks the store, briefly, and stays silent when it fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from farmd.cli.settings import Settings
from farmd.kinds import KINDS

if TYPE_CHECKING:
    from store.consul.client import ConsulClient
    from store.keys import Keys

T = TypeVar("T", bound=Callable[..., object])
PATIENCE_SECONDS = 1.5
_Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a name that cannot be part of a path: a server would answer for another path, or with an
    error that does not mention the name.
    """
    if not value.isprintable():
        raise click.BadParameter(f"found {value!r}, expected a name of printable characters", ctx, param)
    if {"", ".", ".."} & set(value.split("/")):
        text = f"found {value!r}, expected a name without empty parts, '.' or '..'"
        raise click.BadParameter(text, ctx, param)
    return value


def checked_if_given(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """As ``checked``, for an option that may be left out."""
    return checked(ctx, param, value) if value else value


def checked_prefix(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """As ``checked``, for the beginning of a name, which may end in a slash."""
    checked(ctx, param, f"{value}x")
    return value


def target(noun: str, complete: _Completion, metavar: str | None = None) -> Callable[[T], T]:
    """The argument ``name``: one object, as ``hello`` or as ``-o name`` prints it, ``rc/hello``."""

    def one(ctx: click.Context, param: click.Parameter, value: str) -> str:
        return checked(ctx, param, value).removeprefix(f"{noun}/")

    return click.argument("name", metavar=metavar, callback=one, shell_complete=complete)


def all_checked(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """As ``checked``, for several names."""
    return tuple(checked(ctx, param, name) for name in value)


def targets(noun: str, complete: _Completion) -> Callable[[T], T]:
    """The argument ``names``: several such objects, each once."""

    def several(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.removeprefix(f"{noun}/") for name in all_checked(ctx, param, value)))

    return click.argument("names", nargs=-1, required=True, callback=several, shell_complete=complete)


_Source = Callable[["ConsulClient", "Keys"], Awaitable[Iterable[str]]]


def objects(*families: str) -> _Completion:
    """Names of the records of some families; without any, of all kinds of work with names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        return _complete(ctx, names, incomplete)

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from farmd.commands.finding import names_of

        every = [kind.family for kind in KINDS.values() if kind.noun]
        return await names_of(client, keys, families or every)

    return complete


def below(family: str) -> _Completion:
    """The keys of a family whose keys have any number of parts."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
            tree = keys.tree(family)
            return [key.removeprefix(tree) for key in (await client.keys(f"{tree}{incomplete}")).items]

        return _complete(ctx, names, incomplete)

    return complete


nodes = objects("nodes")
items = objects()
"""All objects that a person may have changed."""


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Pods as ``node/instance``."""

    from farmd.commands.finding import names_of

    return _complete(ctx, partial(names_of, families=["pods"]), incomplete)


def taints_of_node(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Taints of the node that was typed before it, as ``key:effect``."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.nodes import NodeStore

        found = await NodeStore(client, keys).get(str(ctx.params.get("name")))
        return {f"{taint.key}:{taint.effect}" for taint in found.record.taints}

    return _complete(ctx, names, incomplete)


def evidence(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The evidence of the freeze of the kind that was typed before it."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.failsafe import FailsafeStore

        found = await FailsafeStore(client, keys).list()
        return [stored.record.evidence for kind, stored in found.items() if kind == ctx.params.get("kind")]

    return _complete(ctx, names, incomplete)


def findings(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Codes and objects of findings that the doctor can fix."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from farmd.doctor.examine import examine
        from farmd.runtime.clock import SystemClock

        found = (await examine(client, keys, SystemClock())).findings
        return {text for one in found if one.fixable for text in (one.code, one.object)}

    return _complete(ctx, names, incomplete)


def freezes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Kinds of work that are frozen."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.failsafe import FailsafeStore

        return await FailsafeStore(client, keys).list()

    return _complete(ctx, names, incomplete)


def _complete(ctx: click.Context, source: _Source, incomplete: str) -> list[str]:
    from farmd.runtime.errors import FarmdError
    from store.errors import StoreError

    try:
        names = asyncio.run(asyncio.wait_for(_ask(Settings.of(ctx), source), PATIENCE_SECONDS))
    except (StoreError, FarmdError, TimeoutError, OSError):
        return []  # a shell that waits for a completion has no place for an error
    given = ctx.params.get("names") or ()
    return sorted(name for name in names if name.startswith(incomplete) and name not in given)


async def _ask(settings: Settings, source: _Source) -> Iterable[str]:
    from farmd.cli.invocation import address, environment, prefix
    from farmd.runtime.clock import SystemClock
    from store.consul.transport import connect
    from store.keys import Keys

    env = environment(settings, os.environ)
    client = connect(env, SystemClock(), address=address(settings, env))
    try:
        return await source(client, Keys(prefix(env)))
    finally:
        await client.close()
