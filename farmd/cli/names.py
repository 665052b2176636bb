"""Completion of object names: asks the store, briefly, and stays silent when it cannot."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click

from farmd.cli.options import Settings

if TYPE_CHECKING:
    from store.consul.client import ConsulClient
    from store.keys import Keys

_PATIENCE_SECONDS = 1.5
_Source = Callable[["ConsulClient", "Keys"], Awaitable[Iterable[str]]]


def controllers(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of controllers."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.rcs import ReplicationControllerStore

        return await ReplicationControllerStore(client, keys).names()

    return _complete(ctx, names, incomplete)


def daemonsets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of daemon sets."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.daemonsets import DaemonSetStore

        return await DaemonSetStore(client, keys).names()

    return _complete(ctx, names, incomplete)


def nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of nodes."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.nodes import NodeStore

        return (await NodeStore(client, keys).list()).items

    return _complete(ctx, names, incomplete)


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Pods as ``node/instance``."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.keys import is_sentinel

        page = await client.keys(keys.tree("intent"))
        return ["/".join(keys.intent_parts(key)) for key in page.items if not is_sentinel(key)]

    return _complete(ctx, names, incomplete)


def freezes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Kinds of work that are frozen."""

    async def names(client: ConsulClient, keys: Keys) -> Iterable[str]:
        from store.failsafe import FailsafeStore

        return await FailsafeStore(client, keys).list()

    return _complete(ctx, names, incomplete)


def _complete(ctx: click.Context, source: _Source, incomplete: str) -> list[str]:
    from farmd.errors import FarmdError
    from store.errors import StoreError

    try:
        names = asyncio.run(asyncio.wait_for(_ask(Settings.of(ctx), source), _PATIENCE_SECONDS))
    except (StoreError, FarmdError, TimeoutError, OSError):
        return []  # a shell that waits for a completion has no place for an error
    return sorted(name for name in names if name.startswith(incomplete))


async def _ask(settings: Settings, source: _Source) -> Iterable[str]:
    from farmd.cli.invocation import address, environment, prefix
    from farmd.clock import SystemClock
    from store.consul.connect import connect
    from store.keys import Keys

    env = environment(settings, os.environ)
    client = connect(env, SystemClock(), address=address(settings, env))
    try:
        return await source(client, Keys(prefix(env)))
    finally:
        await client.close()
