"""What one farmctl command runs with: the connected store, the shared settings, and the caller."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import click

from farmd.cli.settings import Settings
from farmd.commands.mutation import Call
from farmd.process.start import collect_rarely, import_structlog
from farmd.runtime.clock import SystemClock, SystemIds
from farmd.tables.model import clean
from store.consul.client import ConsulClient
from store.consul.environment import DATACENTER, Tls, datacenter
from store.consul.transport import connect
from store.errors import InputInvalid, NotFound
from store.keys import Keys
from store.mistakes import nearest

_VARIABLES = {
    "FARMCTL_ADDR",
    "FARMCTL_CACERT",
    "FARMCTL_CAPATH",
    "FARMCTL_CLIENT_CERT",
    "FARMCTL_CLIENT_KEY",
    "FARMCTL_TOKEN_FILE",
    "FARMD_STORE__ADDRESS",
    "FARMD_STORE__PREFIX",
    "FARMD_STORE__TOKEN_FILE",
}
_PREFIX = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*/)+")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One running command.

    ``shown``: where tables and documents go, for a caller that shows those of several datacenters; None: to
    stdout.
    """

    settings: Settings
    call: Call
    shown: list[Any] | None = None

    @property
    def client(self) -> ConsulClient:
        return self.call.client

    @property
    def keys(self) -> Keys:
        return self.call.keys

    @property
    def datacenter(self) -> str:
        """The datacenter that was named; empty: none, so that of Consul here answers."""
        return environment(self.settings, os.environ).get(DATACENTER, "").lower()

    def tls(self) -> ssl.SSLContext | bool:
        """How farms and agents are asked over HTTPS, by the variables ``FARMCTL_CACERT`` and the like.

        Raises:
            InputInvalid: a variable is wrong. CredentialInvalid: a file is not usable.
        """
        tls = Tls.from_environment(os.environ, "FARMCTL")
        return tls.context() if any(tls.files) else True

    def reviewing(self) -> Invocation:
        """The same, for signing what comes from the store and not from a person's file."""
        return replace(self, settings=replace(self.settings, reviews=True))

    def say(self, text: str) -> None:
        """Print a remark to stderr; nothing with ``-q``."""
        if not self.settings.quiet:
            click.echo(text, err=True)


def run(
    settings: Settings, function: Callable[..., Any], params: Mapping[str, Any], *, mutates: bool = False
) -> None:
    """Connect, run one command, disconnect; a closed pipe and ^C end it quietly.

    Raises:
        Exit: 130 at ^C. At a closed pipe 0, but 1 where it ``mutates``, because changes may be left undone.
    """
    _quiet_logs(settings.verbose)
    collect_rarely()
    try:
        asyncio.run(_run(settings, function, params))
        sys.stdout.flush()
    except BrokenPipeError as error:
        # The reader closed the pipe, which is no error. Python would report it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1 if mutates and not settings.dry_run else 0) from error
    except KeyboardInterrupt as error:
        click.echo("farmctl: interrupted", err=True)
        raise click.exceptions.Exit(130) from error


async def _run(settings: Settings, function: Callable[..., Any], params: Mapping[str, Any]) -> None:
    async with connected(settings) as invocation:
        try:
            await function(invocation, **params)
        except NotFound as error:
            from farmd.commands.finding import suggest

            await suggest(invocation.call, error)
            raise


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Invocation]:
    """An invocation with these settings, connected as long as the block runs.

    Raises:
        InputInvalid: a variable or an option is not usable.
    """
    env = environment(settings, os.environ)
    keys = Keys(prefix(env))
    clock = SystemClock()
    client = connect(env, clock, address=address(settings, env))
    said = set[str]()

    def note(text: str) -> None:
        if text not in said and not settings.quiet:  # --watch looks again and again
            said.add(text)
            click.echo(clean(text), err=True)

    call = Call(client, keys, clock, SystemIds(), actor(), settings.reason, settings.force, note=note)
    try:
        yield Invocation(settings, call)
    finally:
        await to_its_end(client.close())


async def to_its_end(closing: Coroutine[Any, Any, None]) -> None:
    """Await something short that a ^C must not cut off: what is left open would be complained of."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def environment(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """The environment with the chosen token file: from the flag, then ``FARMD_*``, then ``CONSUL_*``.

    Raises:
        InputInvalid: a variable of ours that is none.
    """
    for name in env:
        if name.startswith(("FARMCTL_", "FARMD_STORE_")) and name not in _VARIABLES:
            raise InputInvalid(f"{name}: unknown variable{nearest(name, sorted(_VARIABLES))}", field=name)
    found = dict(env)
    token_file = settings.token_file or env.get("FARMD_STORE__TOKEN_FILE")
    if token_file:
        found.pop("CONSUL_HTTP_TOKEN", None)
        found["CONSUL_HTTP_TOKEN_FILE"] = token_file
    if settings.dc:
        found[DATACENTER] = datacenter(settings.dc, "--dc")
    return found


def address(settings: Settings, env: Mapping[str, str]) -> str | None:
    """The address that wins over ``CONSUL_HTTP_ADDR``, if any."""
    return settings.http_addr or env.get("FARMD_STORE__ADDRESS") or None


def prefix(env: Mapping[str, str]) -> str:
    """The prefix of all keys, from the variable that the daemons use, too.

    Raises:
        InputInvalid: it is not made of names that end in slashes.
    """
    found = env.get("FARMD_STORE__PREFIX") or Keys().prefix
    if not _PREFIX.fullmatch(found) or ".." in found:
        raise InputInvalid(
            f"FARMD_STORE__PREFIX: found {found!r}, expected names that each end in '/', such as 'farmd/'",
            field="FARMD_STORE__PREFIX",
        )
    return found


def actor() -> str:
    """The caller for the audit: ``user/<name>@<host>``."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = str(os.getuid())
    return f"user/{name}@{socket.gethostname()}"


def _quiet_logs(verbose: bool) -> None:
    """Discard the store's log lines, which are meant for daemons; with ``-v`` they go to stderr."""
    import_structlog()
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("debug" if verbose else "critical"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
