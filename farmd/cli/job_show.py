"""``farmctl job get | describe | explain``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from farmd import cli
from farmd.cli import noun_show
from farmd.cli.cluster import Place, beside, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.noun_show import describing, explaining, getting
from farmd.cli.options import command
from farmd.jobs.commands import JOB
from farmd.overview import Row
from farmd.tables.model import clean
from store.errors import StoreError


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only jobs whose own labels match.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In Kubernetes: all namespaces.")
@namespace_options
async def list_(
    invocation: Invocation, selector: str, everywhere: bool, kubeconfig: str, context: str, namespace: str
) -> None:
    """All jobs, with what their owners last reported.

    With a kubeconfig, jobs in Kubernetes follow as NAMESPACE/NAME: those of its namespace, of -n, or with
    -A of all namespaces. An unreachable cluster is an error only if an option names it.
    """
    place = Place(kubeconfig, context, namespace)
    await noun_show.list_all(invocation, JOB, selector, partial(_there, invocation, place, everywhere))


async def _there(invocation: Invocation, place: Place, everywhere: bool) -> Sequence[Row[Any]]:
    """The jobs in Kubernetes. Empty without a cluster, for one of several datacenters, and if a cluster
    that nobody named does not answer.
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


_explained = "A job's state, and why each node does or does not get one more member of it, for each type."
_described = "One job: its slots, members, owner, and what happened to it last."
_names = lambda: cli.job_cluster.names  # noqa: E731
get = beside(getting(JOB, "job run accepts"), lambda: cli.job_cluster.get, names=_names)
describe = beside(describing(JOB, _described), lambda: cli.job_cluster.describe, names=_names)
explain = beside(explaining(JOB, _explained), lambda: cli.job_cluster.explain, names=_names)
pods = beside(noun_show.pods(JOB), lambda: cli.job_cluster.pods, names=_names)
