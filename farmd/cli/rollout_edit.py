"""``farmctl rollout create | pause | resume | approve | revert | abort``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import click

from farmd import cli
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked_if_given, objects, target
from farmd.cli.noun_edit import carry_out, saying, text_of
from farmd.cli.options import Duration, Whole, command
from farmd.cli.rollout_ksvc import beside_ksvc
from farmd.commands.resolving import resolver
from farmd.rollout import commands
from farmd.rollout import spec as asking
from farmd.rollout.noun import ROLLOUT
from farmd.rollout.spec import Asked, from_file, pod_of
from store import codec
from store.families import RCS, SERVICES
from store.policies import Policy, Strategy
from store.rollouts import KIND


@command("create", mutates=True, waits=True, signs=True)
@click.option(
    "--rc",
    "old",
    default="",
    metavar="RC",
    callback=checked_if_given,
    shell_complete=objects(RCS.name),
    help="The controller to roll out.",
)
@click.option(
    "--to",
    "new",
    default="",
    metavar="RC",
    callback=checked_if_given,
    shell_complete=objects(RCS.name),
    help="The controller that they move to.",
)
@click.option("--manifest", type=click.Path(), help="A file with the new pod, instead of --to.")
@click.option("-f", "--file", "path", type=click.Path(), help="A rollout as YAML or JSON, or one of p2.")
@click.option("--replicas", type=Whole(0), help="Final number of pods.")
@click.option(
    "--strategy", type=click.Choice(get_args(Strategy)), help="Which pods are added and removed first."
)
@click.option("--minimum", metavar="N|P%", help="How many pods stay available (default: the controller's).")
@click.option("--stages", metavar="1,10%,100%", help="The stages, as pods or shares (default: 1,100%).")
@click.option("--bake", type=Duration(), help="How long to wait after each stage.")
@click.option("--approve", is_flag=True, help="Each stage after the first waits for farmctl rollout approve.")
@click.option("--leave-old", is_flag=True, help="Keep the old controller after the rollout.")
@click.option(
    "--service",
    default="",
    shell_complete=objects(SERVICES.name),
    help="The service that these pods serve; created if it does not exist.",
)
@click.option("--retry", is_flag=True, help="Also accept a version that was reverted before.")
async def create(
    invocation: Invocation, old: str, new: str, manifest: str | None, path: str | None, **flags: Any
) -> None:
    """Begin a rollout from one controller to another that exists, or to another pod.

    A file has the fields name, to or pod, replicas, service, and the policy as rollout; a p2 rolling update
    (OldRC, NewRC, DesiredReplicas, MinimumReplicas, ...) is accepted as it is. Flags win over the file, and
    the file over the controller's own policy.
    """
    asked = from_file(text_of(path), path) if path is not None else Asked(rc="")
    own = {
        "rc": old,
        "to": new,
        "replicas": flags["replicas"],
        "bake": flags["bake"],
        "service": flags["service"],
    }
    switches = {name: flags[name] for name in ("approve", "retry")}
    asked = replace(
        asked, **{name: value for name, value in own.items() if value not in ("", None)}, **switches
    )
    if manifest is not None:
        text = text_of(manifest)
        resolve = await resolver(invocation.call, [(text, manifest)])
        asked = replace(asked, pod=pod_of(text, manifest, resolve))
    changes = {
        "strategy": flags["strategy"],
        "minimum": _part(flags["minimum"]),
        "stages": _parts(flags["stages"]),
        "leave_old": flags["leave_old"] or None,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    codec.parse_input(Policy, changes, "rollout")  # what no policy can have needs no look at the store
    mutation = await asking.create(invocation.call, replace(asked, changes=changes))
    await carry_out(invocation.reviewing() if asked.to else invocation, ROLLOUT, [mutation])


def _part(text: str | None) -> int | str | None:
    """A number, or the text: the policy's type says what else it may be."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else text


def _parts(text: str | None) -> list[int | str | None] | None:
    return None if text is None else [_part(part.strip()) for part in text.split(",")]


pause = saying(ROLLOUT, "pause", commands.pause)
resume = saying(ROLLOUT, "resume", commands.resume)
abort = saying(ROLLOUT, "abort", commands.abort)


@command("revert", mutates=True, waits=True)
@target("rollout", objects(KIND))
@click.option(
    "--to", type=Whole(1, 100), metavar="N", help="Go back to what ran before rollout N of the history."
)
async def revert(invocation: Invocation, name: str, to: int | None) -> None:
    """Go back to the old version at once. After the end, begin a rollout to the previous version.

    --to N goes back to what ran before rollout N of "farmctl rollout history NAME", whose newest is 1.
    """
    await carry_out(invocation, ROLLOUT, [await commands.revert(invocation.call, name, to=to or 0)])


@command("approve", mutates=True, waits=True)
@target("rollout", objects(KIND))
@click.option("--all", "everything", is_flag=True, help="Approve all remaining stages.")
async def approve(invocation: Invocation, name: str, everything: bool) -> None:
    """Let the next stage begin; it skips no rest."""
    mutation = await commands.approve(invocation.call, name, everything=everything)
    await carry_out(invocation, ROLLOUT, [mutation])


@command("scale", mutates=True, waits=True, negative_numbers=True)
@target("rollout", objects(KIND))
@click.argument("replicas", type=Whole(1))
async def scale(invocation: Invocation, name: str, replicas: int) -> None:
    """Set the final number of pods; both versions follow. Asks before it lowers the number."""
    await carry_out(invocation, ROLLOUT, [await commands.scale(invocation.call, name, replicas)])


pause = beside_ksvc(pause, lambda: cli.rollout_knative.pause)
resume = beside_ksvc(resume, lambda: cli.rollout_knative.resume)
revert = beside_ksvc(revert, lambda: cli.rollout_knative.revert)
