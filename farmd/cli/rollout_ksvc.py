"""``farmctl rollout list | plan | promote | retry``: what there is for Knative Services, ``ksvc/shop/web``.

Nothing of ``farmd.kubernetes`` is imported until a cluster is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from farmd import cli
from farmd.cli.cluster import Place, beside, complete_too, namespace_options
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked, checked_if_given
from farmd.cli.noun_edit import FILES
from farmd.cli.noun_show import list_all
from farmd.cli.options import command
from farmd.rollout.noun import ROLLOUT


def beside_ksvc(made: click.Command, outside: Callable[[], Callable[..., Awaitable[None]]]) -> click.Command:
    """A command for rollouts of controllers, made one for those of Knative Services, too."""
    return beside(made, outside, lies=_is_ksvc, names=lambda: cli.rollout_knative.names)


def _is_ksvc(name: str) -> bool:
    """Whether a name is that of a Knative Service: ``ksvc/shop/web``."""
    return name.startswith("ksvc/")


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only controllers' rollouts whose own labels match.")
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="Include Knative Services in all namespaces."
)
@namespace_options
async def list_(
    invocation: Invocation, selector: str, everywhere: bool, kubeconfig: str, context: str, namespace: str
) -> None:
    """All rollouts of controllers; with -A, -n or another option of a cluster Knative Services, too."""
    place = Place(kubeconfig, context, namespace)
    if everywhere or place.named:
        await cli.rollout_knative.listed(invocation, place, everywhere=everywhere, selector=selector)
        return
    await list_all(invocation, ROLLOUT, selector)


@command("plan", lists=True)
@FILES
@namespace_options
async def plan(
    invocation: Invocation, paths: tuple[str, ...], kubeconfig: str, context: str, namespace: str
) -> None:
    """The stages that a changed file of a Knative Service would go through; nothing is written."""
    await cli.rollout_knative.plan(invocation, Place(kubeconfig, context, namespace), paths)


@command("promote", mutates=True, waits=True)
@click.argument("name", callback=checked)
@namespace_options
async def promote(invocation: Invocation, name: str, kubeconfig: str, context: str, namespace: str) -> None:
    """Finish a rollout of a Knative Service, ksvc/NAMESPACE/NAME, in one stage."""
    await cli.rollout_knative.say(invocation, Place(kubeconfig, context, namespace), name, "promote")


@command("retry", mutates=True, waits=True)
@click.argument("name", callback=checked)
@click.argument("revision", default="", callback=checked_if_given)
@namespace_options
async def retry(
    invocation: Invocation, name: str, revision: str, kubeconfig: str, context: str, namespace: str
) -> None:
    """Retry a reverted revision of a Knative Service; default: the last one."""
    place = Place(kubeconfig, context, namespace)
    await cli.rollout_knative.say(invocation, place, name, "retry", revision)


for _made in (promote, retry):
    complete_too(_made, "name", lambda: cli.rollout_knative.names)
