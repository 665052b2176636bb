"""``farmctl kubernetes``: what farmd needs in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farmd.cli.changes import apply, ask
from farmd.cli.cluster import Place, access_options, connected
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.cli.output import render
from farmd.cli.tables import Column, Table
from farmd.config.kubernetes import JOBS
from farmd.runtime.clock import SystemClock
from store import codec
from store.clusters import ClusterReport
from store.errors import refuse
from store.families import FARMS
from store.farms import Member
from store.keys import is_sentinel

if TYPE_CHECKING:
    from farmd.kubernetes.install import Installed
    from farmd.kubernetes.rights import Rights

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
    namespaces = click.option(
        "--namespace", "namespaces", multiple=True, metavar="NAME", help="Rights there alone. Repeatable."
    )
    subject = click.option(
        "--subject",
        default="",
        metavar="KIND/NAME",
        help="Who bears the rights: user/NAME, group/NAME, serviceaccount/NAMESPACE/NAME.",
    )
    found: F = jobs(progressive(namespaces(subject(access_options(function)))))
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
    namespaces: Sequence[str],
    subject: str,
    printed: bool,
) -> None:
    """Apply the definitions of farmd's own resources and the rights of farms; twice is once."""
    from farmd.kubernetes import install as installing

    rights = _rights(namespaces, subject, progressive=progressive)
    if printed or invocation.settings.dry_run:
        _print(jobs, progressive=progressive, rights=rights)
        return
    async with connected(Place(kubeconfig, context)) as cluster:
        invocation.say(f"installing into {cluster.transport.access.url}")
        found = await installing.install(
            cluster.transport, jobs, SystemClock(), progressive=progressive, rights=rights
        )
        render(invocation, _table(found))


@command("status")
@where
async def status(
    invocation: Invocation,
    kubeconfig: str,
    context: str,
    jobs: Sequence[str],
    progressive: bool,
    namespaces: Sequence[str],
    subject: str,
) -> None:
    """What of it is in the cluster, and how farms stand to the clusters that they work in."""
    from farmd.kubernetes import install as installing

    rights = _rights(namespaces, subject, progressive=progressive)
    async with connected(Place(kubeconfig, context)) as cluster:
        found = await installing.status(cluster.transport, jobs, progressive=progressive, rights=rights)
    render(invocation, _table([*found, *await _farms(invocation)]))


@command("uninstall", mutates=True)
@where
@click.option("--print", "printed", is_flag=True, help="Print the objects as YAML; ask no server.")
async def uninstall(
    invocation: Invocation,
    kubeconfig: str,
    context: str,
    jobs: Sequence[str],
    progressive: bool,
    namespaces: Sequence[str],
    subject: str,
    printed: bool,
) -> None:
    """Remove what ``install`` applied; refused while jobs or rollouts exist, which would go with it."""
    from farmd.kubernetes import install as installing

    rights = _rights(namespaces, subject, progressive=progressive)
    if printed or invocation.settings.dry_run:
        _print(jobs, progressive=progressive, rights=rights)
        return
    async with connected(Place(kubeconfig, context)) as cluster:
        url = cluster.transport.access.url
        ask(invocation, f"Remove farmd's definitions and rights from {url}?", "uninstall is destructive")
        found = await installing.uninstall(cluster.transport, jobs, progressive=progressive, rights=rights)
        render(invocation, _table(found))


@command("accept", mutates=True)
@access_options
@click.option("--name", default="default", help="The name in [kubernetes] of the farms.")
async def accept(invocation: Invocation, kubeconfig: str, context: str, name: str) -> None:
    """Take this cluster for the one that farms mean by a name; they stop where another one answers."""
    from farmd.kubernetes.people.acceptance import accept as accepting

    async with connected(Place(kubeconfig, context)) as cluster:
        await apply(invocation, [await accepting(invocation.call, cluster.transport, name)])


for each in (install, status, uninstall, accept):
    kubernetes.add_command(each)


async def _farms(invocation: Invocation) -> list[Installed]:
    """What the farms say of their clusters."""
    from farmd.kubernetes.install import Installed

    page = await invocation.client.list(invocation.keys.tree(FARMS.name))
    farms = [codec.decode(Member, raw.decoded(), raw.key) for raw in page.items if not is_sentinel(raw.key)]
    return [
        Installed("Farm", f"{farm.id} in {name}", _trouble(report))
        for farm in farms
        for name, report in sorted(farm.clusters.items())
    ]


def _trouble(report: ClusterReport) -> str:
    """All troubles of a farm in one line."""
    return "; ".join(f"{code}: {text}" for code, text in sorted(report.troubles.items())) or "works"


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


def _rights(namespaces: Sequence[str], subject: str, *, progressive: bool) -> Rights:
    from farmd.kubernetes.rights import Rights

    if namespaces and progressive:
        refuse("namespace", "one beside --progressive", "none: these rollouts read Knative's own settings")
    return Rights(namespaces, subject)


def _print(jobs: Sequence[str], *, progressive: bool, rights: Rights) -> None:
    import yaml

    from farmd.kubernetes.install import documents

    click.echo(
        yaml.safe_dump_all(documents(jobs, progressive=progressive, rights=rights), sort_keys=False), nl=False
    )
