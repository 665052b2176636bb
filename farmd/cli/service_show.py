"""``farmctl service list | describe | pods | logs | endpoints | explain | history``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from farmd import overview
from farmd.cli import logs as cli_logs
from farmd.cli import noun_show
from farmd.cli.invocation import Invocation
from farmd.cli.logs import stream_all
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import document, emit, show
from farmd.commands.finding import look
from farmd.commands.heads import headed
from farmd.commands.noun import explain as explain_pods
from farmd.kinds import asked
from farmd.overview import PodRow
from farmd.services import commands
from farmd.services.endpoints import Endpoint, serving
from farmd.tables import services as service_tables
from farmd.tables.items import explained
from farmd.tables.model import Column, Described, Table, ago
from farmd.tables.pods import pod_table
from store.canonical import builtins
from store.errors import NotFound
from store.named import Owner
from store.services import KIND, NOUN, Revision, Service, ServiceStore
from store.status import Status, StatusStore
from store.times import plain

if TYPE_CHECKING:
    from farmd.services.commands import Farms

# ``farmctl service pods | logs | explain``: the pods behind a service, whoever owns them.


@command("pods", lists=True)
@target(NOUN, objects(KIND))
async def pods(invocation: Invocation, name: str) -> None:
    """The pods of a service, with what their nodes report."""

    async def read() -> Table:
        rows, broken = await _pods(invocation, name)
        return pod_table(rows, broken, invocation.call.clock.now())

    await show(invocation, read)


async def _pods(invocation: Invocation, name: str) -> tuple[list[PodRow], list[str]]:
    rows, broken = list[PodRow](), list[str]()
    for owner in (await _owners(invocation, name))[1].values():
        found = await overview.pods(invocation.client, invocation.keys, owner)
        rows += found.rows
        broken += found.broken
    return rows, broken


@command("logs")
@target(NOUN, objects(KIND))
@cli_logs.options
async def logs(invocation: Invocation, name: str, **options: Any) -> None:
    """The output of the pods of a service. Where there are several, each line begins with NODE/INSTANCE."""
    service, owners = await _owners(invocation, name)
    found = [await overview.pods(invocation.client, invocation.keys, owner) for owner in owners.values()]
    placed = [pod for each in found for pod in each.placed]
    await stream_all(invocation, f"{NOUN}/{service.name}", placed, cli_logs.LogChoice(**options))


@command("explain")
@target(NOUN, objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """Why each node does or does not get one more pod of a service."""
    service, owners = await _owners(invocation, name)
    if not owners:
        raise NotFound(f"{NOUN} {service.name!r} has no owner of pods (yet)", kind=KIND, id=service.id)
    for ref, owner in owners.items():
        found = await explain_pods(invocation.call, asked(ref.partition("/")[0]), owner)
        noun_show.explain(invocation, explained(owner, found))


async def _owners(invocation: Invocation, name: str) -> tuple[Service, dict[str, Owner]]:
    """A service, and its owners of pods that exist."""
    service = (await look(invocation.call, ServiceStore(invocation.client, invocation.keys), name)).record
    return service, await commands.owners_of(invocation.call, service)


# ``farmctl service list | describe | endpoints | history``.


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """All services, and whose pods serve."""

    async def read() -> Table:
        rows, broken = await commands.rows(invocation.call)
        now = invocation.call.clock.now()
        return service_tables.table(rows, broken, now)

    await show(invocation, read)


@command("get", lists=True)
@target(NOUN, objects(KIND))
@click.option("--file", "as_file", is_flag=True, help="Print a file that apply and deploy accept.")
async def get(invocation: Invocation, name: str, as_file: bool) -> None:
    """One service by name, id or a prefix of its id."""
    settings, call = invocation.settings, invocation.call
    if as_file or (settings.output == "yaml" and not settings.watch):
        from farmd.deploy.commands import deployed, spec_now

        record = (await ServiceStore(call.client, call.keys).find(name)).record
        if not record.mode:
            from farmd.services.document import document as named

            noun_show.emit_file(invocation, headed(NOUN, await named(call, record)))
            return
        stored = await deployed(call, record.id, "written as a file", "")
        noun_show.emit_file(invocation, headed(NOUN, builtins(await spec_now(call, stored.record))))
        return

    async def read() -> Table:
        return service_tables.table([await commands.row(call, name)], [], call.clock.now())

    if settings.output == "json" and not settings.watch:
        emit(invocation, document("Service", service_tables.plain_row(await commands.row(call, name))))
    else:
        await show(invocation, read)


@command("describe")
@target(NOUN, objects(KIND))
async def describe(invocation: Invocation, name: str) -> None:
    """One service: its owners, its endpoints and what happened to it last."""
    call = invocation.call
    row = await commands.row(call, name)
    record = row.record
    _, sightings = await commands.PodsWatch(call, name).look()
    found = serving(sightings, ())
    published = await StatusStore(call.client, call.keys, "catalog", Status).get(record.id)
    domain = "" if record.catalog is None else await call.client.domain()
    facts = [
        *service_tables.facts(row, call.clock.now(), published, domain),
        ("Endpoints", f"{len(found)} of {len(sightings)} pods"),
        *(("Endpoint", f"{service_tables.where(each)}  {each.node}/{each.instance}") for each in found),
    ]
    revisions = {"Revisions (newest first)": _revisions(record, call.clock.now())} if record.mode else {}
    told = {"published": None if published is None else plain(published)}
    told |= {"endpoints": plain(found), "revisions": plain(record.history)}
    described = Described(
        *(record.id, record.name, "", "", facts, revisions, row, KIND),
        document=service_tables.plain_row(row) | told,
    )
    if invocation.settings.output != "name":
        described = await noun_show.with_usage(invocation, described, (await _pods(invocation, name))[0])
    await noun_show.describe(invocation, "Service", NOUN, described)


@command("endpoints", lists=True)
@target(NOUN, objects(KIND))
async def endpoints(invocation: Invocation, name: str) -> None:
    """Address and port of each available pod of a service.

    With --watch a farm reports each change; without a farm, the store is read repeatedly.
    """
    watch, farms = commands.PodsWatch(invocation.call, name), _farms(invocation)
    last, service, empty = tuple[Endpoint, ...](), "", ""

    async def read() -> Table:
        nonlocal last, service, empty
        found = await farms.wait(service) if farms is not None and service else None
        if found is None:
            record, sightings = await watch.look()
            service, found = record.name, serving(sightings, last)
            none = "no pod" if record.port else "no port, so no pod"
            empty = f"{none} of {NOUN} {service} is available"
        last = found
        return service_tables.endpoints(last, empty)

    await show(invocation, read)


def _farms(invocation: Invocation) -> Farms | None:
    """Whom to ask for changes; None: nobody watches on."""
    if not invocation.settings.watch:
        return None
    from farmd.services.commands import Farms

    return Farms(invocation.call, invocation.tls())


@command("history", lists=True)
@target(NOUN, objects(KIND))
async def history(invocation: Invocation, name: str) -> None:
    """The revisions of a service that deployments made, the newest first; failed ones have their reason."""

    async def read() -> Table:
        record = (await commands.row(invocation.call, name)).record
        return _revisions(record, invocation.call.clock.now())

    await show(invocation, read)


def _revisions(record: Service, now: float) -> Table:
    def number(row: Revision) -> str:
        return f"{row.number}{' (now)' if row.number == record.revision else ''}"

    return Table(
        kind="Revision",
        rows=record.history,
        columns=(
            Column("REVISION", number),
            Column("RESULT", lambda row: row.result),
            Column("REPLICAS", lambda row: str(row.version.replicas)),
            Column("IMAGE", lambda row: service_tables.image(row.version)),
            Column("AGE", lambda row: ago(now, row.at)),
            Column("BY", lambda row: row.by),
            Column("DEPLOYMENT", lambda row: row.deployment[:8]),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"{NOUN}/{record.name}@{row.number}",
        plain=plain,
        empty=f"no deployment of {NOUN} {record.name} is over",
    )
