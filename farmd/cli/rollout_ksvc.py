"""``farmctl rollout list | plan | promote | retry``: what there is for Knative Services, ``ksvc/shop/web``.

Nothing of ``farmd.kubernetes`` is imported until a cluster is asked.
"""

from __future__ import annotations

import click

from farmd.cli.cluster import KNATIVE, Place, complete_too, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import FILES
from farmd.cli.noun_show import listing
from farmd.cli.options import Command, command
from farmd.kinds import load
from farmd.rollout.noun import ROLLOUT


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only controllers' rollouts whose own labels match.")
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="And of Knative Services in all namespaces."
)
@namespace_options
async def list_(
    invocation: Invocation, selector: str, everywhere: bool, kubeconfig: str, context: str, namespace: str
) -> None:
    """All rollouts of controllers; with -A, -n or another option of a cluster Knative Services, too."""
    place = Place(kubeconfig, context, namespace)
    if everywhere or place.named:
        await load(f"{KNATIVE}:listed")(invocation, place, everywhere=everywhere, selector=selector)
        return
    made = listing(ROLLOUT)
    assert isinstance(made, Command)
    await made.function(invocation, selector=selector)


@command("plan", lists=True)
@FILES
@namespace_options
async def plan(
    invocation: Invocation, paths: tuple[str, ...], kubeconfig: str, context: str, namespace: str
) -> None:
    """The stages that a changed file of a Knative Service would go through; nothing is written."""
    await load(f"{KNATIVE}:plan")(invocation, Place(kubeconfig, context, namespace), paths)


@command("promote", mutates=True, waits=True)
@click.argument("name")
@namespace_options
async def promote(invocation: Invocation, name: str, kubeconfig: str, context: str, namespace: str) -> None:
    """Bring a rollout of a Knative Service, ksvc/NAMESPACE/NAME, to its end in one stage."""
    await load(f"{KNATIVE}:say")(invocation, Place(kubeconfig, context, namespace), name, "promote")


@command("retry", mutates=True, waits=True)
@click.argument("name")
@click.argument("revision", default="")
@namespace_options
async def retry(
    invocation: Invocation, name: str, revision: str, kubeconfig: str, context: str, namespace: str
) -> None:
    """Try a reverted revision of a Knative Service again: the one that is named, else the last one."""
    place = Place(kubeconfig, context, namespace)
    await load(f"{KNATIVE}:say")(invocation, place, name, "retry", revision)


for _made in (promote, retry):
    complete_too(_made, "name", f"{KNATIVE}:names")
