"""``farmctl kubernetes``: what farmd needs in a cluster. Only these commands import ``farmd.kubernetes``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farmd.cli.changes import ask
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.cli.output import render
from farmd.cli.tables import Column, Table
from farmd.config.kubernetes import JOBS
from farmd.runtime.clock import SystemClock, system_rng
from store.errors import AccessDenied, Conflict, InputInvalid, NotFound, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from farmd.kubernetes.errors import KubernetesError
    from farmd.kubernetes.install import Installed
    from farmd.kubernetes.transport import KubernetesTransport

F = TypeVar("F", bound=Any)
HINT = "check --kubeconfig, --context or KUBECONFIG"
_AS: dict[int, type[StoreError]] = {
    400: InputInvalid,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: Conflict,
    422: InputInvalid,
}


@click.group("kubernetes", cls=LazyGroup)
def kubernetes() -> None:
    """Kubernetes: install what farms need in a cluster to run jobs there."""


def where(function: F) -> F:
    """The options that name a cluster, and the kinds of jobs."""
    for option in (
        click.option("--kubeconfig", default="", help="Path; else KUBECONFIG, else ~/.kube/config."),
        click.option("--context", default="", help="Its context; else the current one."),
        click.option(
            "--jobs", type=click.Choice(JOBS), multiple=True, default=("farmjobs",), help="Kinds of jobs."
        ),
    ):
        function = option(function)
    return function


@command("install", mutates=True)
@where
@click.option("--print", "printed", is_flag=True, help="Print the objects as YAML; ask no server.")
async def install(
    invocation: Invocation, kubeconfig: str, context: str, jobs: Sequence[str], printed: bool
) -> None:
    """Apply the definitions of farmd's own resources and the rights of farms; twice is once."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(jobs)
        return
    async with _connected(kubeconfig, context) as transport:
        invocation.say(f"installing into {transport.access.url}")
        found = await installing.install(transport, jobs, SystemClock())
        render(invocation, _table(found))


@command("status")
@where
async def status(invocation: Invocation, kubeconfig: str, context: str, jobs: Sequence[str]) -> None:
    """What of it is in the cluster."""
    from farmd.kubernetes import install as installing

    async with _connected(kubeconfig, context) as transport:
        found = await installing.status(transport, jobs)
        render(invocation, _table(found))


@command("uninstall", mutates=True)
@where
@click.option("--print", "printed", is_flag=True, help="Print the objects as YAML; ask no server.")
async def uninstall(
    invocation: Invocation, kubeconfig: str, context: str, jobs: Sequence[str], printed: bool
) -> None:
    """Remove what ``install`` applied; refused while jobs exist, which would be deleted with it."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(jobs)
        return
    async with _connected(kubeconfig, context) as transport:
        url = transport.access.url
        ask(invocation, f"Remove farmd's definitions and rights from {url}?", "uninstall is destructive")
        found = await installing.uninstall(transport, jobs)
        render(invocation, _table(found))


for each in (install, status, uninstall):
    kubernetes.add_command(each)


@asynccontextmanager
async def _connected(kubeconfig: str, context: str) -> AsyncIterator[KubernetesTransport]:
    """A transport to the cluster that a person means; refusals become errors of the command line."""
    from farmd.kubernetes.access import access
    from farmd.kubernetes.errors import KubernetesError
    from farmd.kubernetes.transport import KubernetesTransport

    home = Path.home() / ".kube" / "config"
    if not kubeconfig and not os.environ.get("KUBECONFIG") and home.exists():
        kubeconfig = str(home)
    clock = SystemClock()
    found = access(os.environ, clock, kubeconfig=kubeconfig, context=context)
    async with KubernetesTransport(found, clock=clock, rng=system_rng()) as transport:
        try:
            yield transport
        except KubernetesError as error:
            raise _told(error) from error


def _told(error: KubernetesError) -> StoreError:
    return _AS.get(error.status, StoreUnavailable)(error.message, hint=HINT)


def _table(found: list[Installed]) -> Table:
    columns = (
        Column("KIND", lambda row: row.kind),
        Column("NAME", lambda row: row.name),
        Column("STATE", lambda row: row.state),
    )
    return Table(
        kind="Installed",
        rows=found,
        columns=columns,
        name=lambda row: f"{row.kind.lower()}/{row.name}",
        plain=asdict,
    )


def _print(jobs: Sequence[str]) -> None:
    import yaml

    from farmd.kubernetes.install import documents

    click.echo(yaml.safe_dump_all(documents(jobs), sort_keys=False), nl=False)
