"""``farmctl kubernetes``: what farmd needs in a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from farmd import overview
from farmd.cli.asking import ask
from farmd.cli.changes import apply
from farmd.cli.cluster import Place, a_namespace, access_options, connected
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.output import render
from farmd.config.kubernetes import JOBS
from farmd.runtime.clock import SystemClock
from farmd.tables.model import Column, Table
from store.errors import refuse
from store.farms import ClusterReport

if TYPE_CHECKING:
    from farmd.kubernetes.install import Installed, Rights


WHOLE = (
    "none: farms read Knative's version from its definition, which is in no namespace,"
    " so no Role can allow it"
)


@click.group("kubernetes", cls=LazyGroup)
def kubernetes() -> None:
    """Kubernetes: install what farms need in a cluster to run jobs there."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The values of the options: a cluster, kinds of jobs, and more keywords of ``installing``."""

    place: Place
    jobs: Sequence[str]
    besides: dict[str, Any]


def where(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The options that name a cluster, the kinds of work there and who may do it, as one ``Chosen``."""

    @wraps(function)
    async def choosing(
        invocation: Invocation,
        kubeconfig: str,
        context: str,
        jobs: Sequence[str],
        progressive: bool,
        namespaces: Sequence[str],
        subject: str,
        **others: Any,
    ) -> None:
        rights = _rights(namespaces, subject, progressive=progressive)
        besides = {"progressive": progressive, "rights": rights}
        await function(invocation, Chosen(Place(kubeconfig, context), jobs, besides), **others)

    for option in (
        click.option(
            "--subject",
            default="",
            metavar="KIND/NAME",
            help="Who gets the rights: user/NAME, group/NAME or serviceaccount/NAMESPACE/NAME; by default,"
            " rights in namespaces go to user/farmd.",
        ),
        click.option(
            "--namespace",
            "namespaces",
            multiple=True,
            metavar="NAME",
            callback=a_namespace,
            help="Only in this namespace. Repeatable.",
        ),
        click.option("--progressive", is_flag=True, help="Include progressive rollouts of Knative Services."),
        click.option(
            "--jobs", type=click.Choice(JOBS), multiple=True, default=("farmjobs",), help="Kinds of jobs."
        ),
        access_options,
    ):
        option(choosing)
    return choosing


@command("install", mutates=True)
@where
@click.option(
    "--print", "printed", is_flag=True, help="Print the objects as YAML, without contacting a server."
)
async def install(invocation: Invocation, chosen: Chosen, printed: bool) -> None:
    """Apply the definitions of farmd's own resources and the rights of farms; safe to repeat."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(chosen)
        return
    async with connected(chosen.place) as cluster:
        invocation.say(f"installing into {cluster.transport.access.url}")
        found = await installing.install(cluster.transport, chosen.jobs, SystemClock(), **chosen.besides)
        render(invocation, _table(found))


@command("status")
@where
async def status(invocation: Invocation, chosen: Chosen) -> None:
    """Which of farmd's definitions are in the cluster, and whether farms reach their clusters."""
    from farmd.kubernetes import install as installing

    async with connected(chosen.place) as cluster:
        found = await installing.status(cluster.transport, chosen.jobs, **chosen.besides)
    render(invocation, _table([*found, *await _farms(invocation)]))


@command("uninstall", mutates=True)
@where
@click.option(
    "--print", "printed", is_flag=True, help="Print the objects as YAML, without contacting a server."
)
async def uninstall(invocation: Invocation, chosen: Chosen, printed: bool) -> None:
    """Remove what ``install`` applied; refused while jobs or rollouts exist, which would go with it."""
    from farmd.kubernetes import install as installing

    if printed or invocation.settings.dry_run:
        _print(chosen)
        return
    async with connected(chosen.place) as cluster:
        url = cluster.transport.access.url
        ask(invocation, f"Remove farmd's definitions and rights from {url}?", "uninstall is destructive")
        found = await installing.uninstall(cluster.transport, chosen.jobs, **chosen.besides)
        render(invocation, _table(found))


@command("accept", mutates=True)
@access_options
@click.option("--name", default="default", help="The name in [kubernetes] of the farms.")
async def accept(invocation: Invocation, kubeconfig: str, context: str, name: str) -> None:
    """Accept this cluster as the one that farms know by a name; they stop if another one answers."""
    from farmd.kubernetes.commands import accept as accepting

    async with connected(Place(kubeconfig, context)) as cluster:
        await apply(invocation, [await accepting(invocation.call, cluster.transport, name)])


for each in (install, status, uninstall, accept):
    kubernetes.add_command(each)


async def _farms(invocation: Invocation) -> list[Installed]:
    """The farms' reports on their clusters."""
    from farmd.kubernetes.install import Installed

    return [
        Installed("Farm", f"{farm.id} in {name}", _trouble(report))
        for farm in await overview.farms(invocation.client, invocation.keys)
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
    from farmd.kubernetes.install import Rights

    if namespaces and progressive:
        refuse("--namespace", "one beside --progressive", WHOLE)
    return Rights(namespaces, subject)


def _print(chosen: Chosen) -> None:
    import yaml

    from farmd.kubernetes.install import documents

    click.echo(yaml.safe_dump_all(documents(chosen.jobs, **chosen.besides), sort_keys=False), nl=False)
