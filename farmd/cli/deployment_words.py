"""``farmctl deployment status | pause | resume | rollback``."""

from __future__ import annotations

import sys

import click

from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import saying
from farmd.cli.options import command
from farmd.cli.output import document, emit, width_of
from farmd.commands.waiting import fitting
from farmd.deploy import commands, view
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.view import Pulls
from farmd.overview import Row
from farmd.tables.model import clean
from store.deployments import KIND, Deployment
from store.times import plain


@command("status")
@target("deployment", objects(KIND))
async def status(invocation: Invocation, name: str) -> None:
    """How far a deployment is, service by service, and what it waits for."""
    row: Row[Deployment] = await DEPLOYMENT.row(invocation.call, name)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        told = {"owner": row.owner, "state": row.state, "reason": row.reason, "status": plain(row.status)}
        emit(invocation, document("Deployment", {**plain(row.record), **told}))
    elif output == "name":
        click.echo(f"deployment/{row.record.name}")
    else:
        width = width_of(sys.stdout)
        doing = await Pulls(invocation.call).of(row.record, row.status)
        for line in fitting(view.lines(row.record, row.status, row.state, row.reason, doing), width):
            click.echo(clean(line))


pause = saying(DEPLOYMENT, "pause", commands.pause)
resume = saying(DEPLOYMENT, "resume", commands.resume)
rollback = saying(DEPLOYMENT, "rollback", commands.rollback)
