"""``farmctl rollout create | pause | resume | approve | revert | abort``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import converge, text_of
from farmd.cli.options import command
from farmd.commands.mutation import Call, Mutation
from farmd.rollout import commands, creation, scaling
from farmd.rollout.noun import ROLLOUT
from farmd.rollout.ru import from_p2
from store.errors import InputInvalid
from store.families import SERVICES
from store.policies import Policy, Stage
from store.quantities import seconds
from store.rollouts import KIND


@command("create", mutates=True, waits=True)
@click.option("--rc", "old", default="", metavar="RC", help="The controller whose pods are to change.")
@click.option("--to", "new", default="", metavar="RC", help="The controller that they are to go to.")
@click.option("-f", "--file", "path", type=click.Path(), help="A p2 rolling update, as JSON.")
@click.option("--replicas", type=click.IntRange(1), help="How many pods there are to be in the end.")
@click.option(
    "--minimum", default="", metavar="N|P%", help="How many stay available (default: the controller's)."
)
@click.option("--stages", default="", metavar="1,10%,100%", help="Where it pauses to look (default: 1,100%).")
@click.option("--bake", default="", metavar="TIME", help="How long each stage rests before the next.")
@click.option("--approve", is_flag=True, help="Each stage but the first waits for farmctl rollout approve.")
@click.option("--leave-old", is_flag=True, help="Keep the old controller in the end.")
@click.option(
    "--service",
    default="",
    shell_complete=objects(SERVICES.name),
    help="The service whose pods they are; made where there is none.",
)
async def create(
    invocation: Invocation,
    old: str,
    new: str,
    path: str | None,
    replicas: int | None,
    minimum: str,
    stages: str,
    bake: str,
    approve: bool,
    leave_old: bool,
    service: str,
) -> None:
    """Begin a rollout from one controller to another that exists.

    For a new version of one controller use farmctl rc update -f FILE. A p2 rolling update (OldRC, NewRC,
    DesiredReplicas, MinimumReplicas, ...) is accepted with -f as it is.
    """
    policy: Policy | None
    if path is not None:
        update = from_p2(text_of(path), path)
        old, new, replicas, policy = update.old, update.new, update.replicas, update.policy
    elif old and new:
        said = Policy(
            minimum=_part(minimum) if minimum else None,
            stages=list(_stages(stages, bake, approve)),
            leave_old=leave_old,
        )
        policy = said if said != Policy() else None
    else:
        raise InputInvalid("found neither -f FILE nor both --rc and --to, expected one of them", field="rc")
    mutation = await creation.toward(
        invocation.call, old, new, replicas=replicas, policy=policy, service=service
    )
    await apply(invocation, [mutation])
    await converge(invocation, ROLLOUT, [mutation])


def _part(text: str) -> int | str:
    """A number, or a percentage.

    Raises:
        InputInvalid: neither.
    """
    if text.isdigit():
        return int(text)
    if text.endswith("%") and text[:-1].isdigit() and int(text[:-1]) <= 100:
        return f"{int(text[:-1])}%"
    raise InputInvalid(f"found {text!r}, expected a number of replicas or a percentage such as 10%")


def _stages(text: str, bake: str, approve: bool) -> list[Stage]:
    parts = [
        _part(part.strip()) for part in (text or ("1,100%" if bake or approve else "")).split(",") if part
    ]
    rest = seconds(bake) if bake else 0.0
    last = len(parts) - 1
    return [
        Stage(to=part, bake=rest if number < last else 0.0, approve=approve and number > 0)
        for number, part in enumerate(parts)
    ]


def _word(name: str, say: Callable[[Call, str], Awaitable[Mutation]]) -> click.Command:
    async def run(invocation: Invocation, name: str) -> None:
        mutation = await say(invocation.call, name)
        await apply(invocation, [mutation])
        await converge(invocation, ROLLOUT, [mutation])

    run.__doc__ = say.__doc__
    return command(name, mutates=True, waits=name != "pause")(target("rollout", objects(KIND))(run))


pause = _word("pause", commands.pause)
resume = _word("resume", commands.resume)
abort = _word("abort", commands.abort)


@command("revert", mutates=True, waits=True)
@target("rollout", objects(KIND))
async def revert(invocation: Invocation, name: str) -> None:
    """Go back to the old version at once; after the end: a rollout to the version before."""
    mutation = await commands.revert(invocation.call, name)
    await apply(invocation, [mutation])
    await converge(invocation, ROLLOUT, [mutation])


@command("approve", mutates=True, waits=True)
@target("rollout", objects(KIND))
@click.option("--all", "everything", is_flag=True, help="All stages that are left.")
async def approve(invocation: Invocation, name: str, everything: bool) -> None:
    """Let the next stage begin; it skips no rest."""
    mutation = await commands.approve(invocation.call, name, everything=everything)
    await apply(invocation, [mutation])
    await converge(invocation, ROLLOUT, [mutation])


@command("scale", mutates=True, waits=True, negative_numbers=True)
@target("rollout", objects(KIND))
@click.argument("replicas", type=int)
async def scale(invocation: Invocation, name: str, replicas: int) -> None:
    """Set how many pods there are to be in the end; both versions follow. Fewer than now asks first."""
    mutation = await scaling.scale(invocation.call, name, replicas)
    await apply(invocation, [mutation])
    await converge(invocation, ROLLOUT, [mutation])
