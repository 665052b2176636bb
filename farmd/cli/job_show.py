"""``farmctl job get | describe | explain``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from farmd import cli, overview
from farmd.cli import noun_show
from farmd.cli.cluster import Place, beside, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.options import command
from farmd.cli.output import document, emit, show
from farmd.commands import fleet
from farmd.commands.heads import headed
from farmd.commands.resolving import referring
from farmd.jobs import commands
from farmd.jobs.commands import JOB
from farmd.jobs.placing import request_of
from farmd.overview import Row
from farmd.tables import jobs as tables
from farmd.tables import manifests as manifest_facts
from farmd.tables import nouns as noun_tables
from farmd.tables.model import Table, clean
from scheduler import explain as words
from scheduler.decide import explanation
from store import manifests, selectors
from store.audit import AuditReader, Filter
from store.errors import StoreError
from store.jobs import KIND, Job
from store.times import plain

_HISTORY = 8


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only jobs whose own labels match.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In Kubernetes: all namespaces.")
@namespace_options
async def list_(
    invocation: Invocation, selector: str, everywhere: bool, kubeconfig: str, context: str, namespace: str
) -> None:
    """All jobs, with what their owners last reported.

    Where a kubeconfig is there, jobs in Kubernetes follow as NAMESPACE/NAME: those of its namespace,
    of -n, or with -A of all. Their cluster may be away, unless an option names it.
    """
    wanted, client, keys = selectors.parse(selector), invocation.client, invocation.keys
    place = Place(kubeconfig, context, namespace)

    async def read() -> Table:
        found = await overview.rows(client, keys, JOB.records(client, keys))
        rows = [*found.rows, *await _there(invocation, place, everywhere)]
        chosen = [row for row in rows if wanted.matches(row.record.labels)]
        return noun_tables.table(JOB, chosen, invocation.call.clock.now(), found.broken)

    await show(invocation, read)


async def _there(invocation: Invocation, place: Place, everywhere: bool) -> Sequence[Row[Any]]:
    """The jobs in Kubernetes; none without a cluster, where nobody named the one that does not answer, or as
    part of one of several datacenters.
    """
    if invocation.shown is not None or not (everywhere or place.configured(os.environ)):
        return []
    try:
        return await cli.job_cluster.listed(invocation, place, everywhere)
    except StoreError as error:
        if everywhere or place.named:
            raise
        invocation.say(f"farmctl: jobs in Kubernetes are not shown: {clean(error.message)}")
        return []


async def _row(invocation: Invocation, name: str) -> Row[Job]:
    found: Row[Job] = await JOB.row(invocation.call, name)
    return found


@command("get", lists=True)
@click.option("--file", "as_file", is_flag=True, help="Print a file that job run accepts.")
@target("job", objects(KIND))
async def get(invocation: Invocation, name: str, as_file: bool) -> None:
    """One job by name, id or a prefix of its id."""
    row = partial(_row, invocation, name)
    if as_file or (invocation.settings.output == "yaml" and not invocation.settings.watch):
        spec = referring(await commands.as_file(invocation.call, (await row()).record))
        noun_show.emit_file(invocation, headed("job", spec))
    else:
        await noun_show.show_one(invocation, JOB, row)


@command("describe")
@target("job", objects(KIND))
async def describe(invocation: Invocation, name: str) -> None:
    """One job: its slots, members, owner, and what happened to it last."""
    client, keys, output = invocation.client, invocation.keys, invocation.settings.output
    row = await _row(invocation, name)
    run = await tables.read(invocation.call, row.record)
    found = await overview.pods(client, keys, row.record)
    history = await AuditReader(client, keys).read(Filter(kind=KIND, item=row.record.id), _HISTORY)
    if output in {"json", "yaml"}:
        known, broken = (None, [run]) if isinstance(run, str) else (plain(run), [])
        content = {"run": known, "pods": plain(found.rows), "history": plain(history)}
        content["broken"] = [*broken, *found.broken]
        emit(invocation, document("Job", noun_tables.plain_row(row) | content))
    elif output == "name":
        click.echo(f"job/{row.record.name}")
    else:
        now = invocation.call.clock.now()
        facts = noun_tables.facts(JOB, row, now)
        for each in row.record.types:
            _, runs = await manifest_facts.read(invocation.call, each.manifest)
            facts += [(f"Runs {each.name}", text) for _, text in runs[:1]]
        more, retried = tables.facts(row.record, run, now)
        noun_show.describe(invocation, [*facts, *more], found, history, retried)


@command("explain")
@target("job", objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """A job's state, and why each node does or does not get one more member of it, for each type.

    -o name prints the nodes that can take one, the best one first.
    """
    client, keys, output = invocation.client, invocation.keys, invocation.settings.output
    row = await _row(invocation, name)
    job, state = row.record, f"{row.state}: {row.reason}" if row.reason else row.state
    if output not in {"json", "yaml", "name"}:
        click.echo(clean(f"{job.name} is {state}"))
    view = (await fleet.read(client, keys)).view({job.id})
    documents = {}
    for kind in job.types:
        found = explanation(request_of(job, kind, await manifests.read(client, keys, kind.manifest)), view)
        documents[kind.name] = words.document(found)
        if output == "name":
            for node in found.ranking:
                click.echo(f"node/{node}")
        elif output not in {"json", "yaml"}:
            for line in (f"{job.name}/{kind.name}:", *words.text(found)):
                click.echo(clean(line))
    if output in {"json", "yaml"}:
        emit(
            invocation,
            document("Explanation", {"name": job.name, "id": job.id, "state": state, "types": documents}),
        )


get = beside(get, lambda: cli.job_cluster.get, names=lambda: cli.job_cluster.names)
describe = beside(describe, lambda: cli.job_cluster.describe, names=lambda: cli.job_cluster.names)
explain = beside(explain, lambda: cli.job_cluster.explain, names=lambda: cli.job_cluster.names)
pods = beside(noun_show.pods(JOB), lambda: cli.job_cluster.pods, names=lambda: cli.job_cluster.names)
