"""``farmctl kubernetes``: what farmd needs in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farmd.cli.changes import ask
from farmd.cli.cluster import Place, access_options, connected
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.cli.output import render
from farmd.cli.tables import Column, Table
from farmd.config.kubernetes import JOBS
from farmd.runtime.clock import SystemClock

if TYPE_CHECKING:
    from farmd.kubernetes.install import Installed

F = TypeVar("F", bound=Any)


@click.group("kubernetes", cls=LazyGroup)
def kubernetes() -> None:
    """Kubernetes: install what farms need in a cluster to run jobs there."""


def where(function: F) -> F:
    """The options that name a cluster, and the kinds of work there."""
    jobs = click.option(
        "--jobs", type=click.Choice(JOBS), multiple=True, default=("farmjobs",), help="Kinds of jobs."
    )
    progressive = click.option(
        "--progressive", is_flag=True, help="Also progressive rollouts of Knative Services."
    )
    found: F = jobs(progressive(access_options(function)))
    return found


@command("install", mutates=True)
@where
@click.option("--print", "printed", is_flag=True, help="Print the objects as YAML; ask no server.")
async def install(
    invocation: Invocation,
    kubeconfig: str,
    context: str,
    jobs: Sequence[str],
    progressive: bool,
    printed: bool,
) -> None:
    """Apply the definitions of farmd's own resources and the rights of farms; twice is once."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(jobs, progressive=progressive)
        return
    async with connected(Place(kubeconfig, context)) as cluster:
        invocation.say(f"installing into {cluster.transport.access.url}")
        found = await installing.install(cluster.transport, jobs, SystemClock(), progressive=progressive)
        render(invocation, _table(found))


@command("status")
@where
async def status(
    invocation: Invocation, kubeconfig: str, context: str, jobs: Sequence[str], progressive: bool
) -> None:
    """What of it is in the cluster."""
    from farmd.kubernetes import install as installing

    async with connected(Place(kubeconfig, context)) as cluster:
        found = await installing.status(cluster.transport, jobs, progressive=progressive)
        render(invocation, _table(found))


@command("uninstall", mutates=True)
@where
@click.option("--print", "printed", is_flag=True, help="Print the objects as YAML; ask no server.")
async def uninstall(
    invocation: Invocation,
    kubeconfig: str,
    context: str,
    jobs: Sequence[str],
    progressive: bool,
    printed: bool,
) -> None:
    """Remove what ``install`` applied; refused while jobs or rollouts exist, which would go with it."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(jobs, progressive=progressive)
        return
    async with connected(Place(kubeconfig, context)) as cluster:
        url = cluster.transport.access.url
        ask(invocation, f"Remove farmd's definitions and rights from {url}?", "uninstall is destructive")
        found = await installing.uninstall(cluster.transport, jobs, progressive=progressive)
        render(invocation, _table(found))


for each in (install, status, uninstall):
    kubernetes.add_command(each)


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


def _print(jobs: Sequence[str], *, progressive: bool) -> None:
    import yaml

    from farmd.kubernetes.install import documents

    click.echo(yaml.safe_dump_all(documents(jobs, progressive=progressive), sort_keys=False), nl=False)
