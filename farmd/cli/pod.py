"""``farmctl pod list | describe | logs | restart``."""

from __future__ import annotations

from typing import Any

import click

from farmd import overview
from farmd.cli import logs as cli_logs
from farmd.cli import usage as cli_usage
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, pods
from farmd.cli.noun_edit import going_on
from farmd.cli.options import command
from farmd.cli.output import document, emit, say_facts, show
from farmd.cli.progress import ProgressLine, shown
from farmd.commands import restarting
from farmd.overview import PodRow
from farmd.tables import manifests as manifest_facts
from farmd.tables.model import Table, clean
from farmd.tables.pods import facts, log_facts, pod_table, usage_facts
from farmd.tables.usage import OfPod
from store import families, features, selectors
from store.errors import Ambiguous, NotFound, StoreError
from store.keys import valid_instance, valid_segment
from store.manifests import Manifest
from store.nodes import NodeStore
from store.times import plain

# ``farmctl pod list``.


@command("list", lists=True)
@click.option(
    "-l", "--selector", default="", help="Only pods whose labels match, such as app=hello,tier!=test."
)
@click.option("--node", default="", shell_complete=nodes, help="Only pods on this node.")
async def list_(invocation: Invocation, selector: str, node: str) -> None:
    """Pods, with what their nodes report."""
    wanted = selectors.parse(selector)
    if node:
        await NodeStore(invocation.client, invocation.keys).get(valid_segment(node, "node"))

    agents = cli_usage.Agents(invocation, cli_usage.MOST_LISTED)

    async def read() -> Table:
        found = await overview.pods(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.labels) and node in {"", row.node}]
        table = pod_table(rows, found.broken, invocation.call.clock.now())
        if invocation.settings.output != "wide":
            return table
        answers = await agents.of_nodes(cli_usage.fullest(rows))
        how = "; farmctl pod top --max-nodes N asks more"
        # The reason stays last: only the last column is folded below its line.
        *others, reason = table.columns
        columns = (*others, *cli_usage.columns(answers.used), reason)
        return table._replace(columns=columns, notes=answers.notes(how))

    await show(invocation, read)


# ``farmctl pod logs``: what a pod wrote.


@command("logs")
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
@cli_logs.options
@cli_logs.PROCESS
async def logs(invocation: Invocation, pod: str, **options: Any) -> None:
    """The output of a pod. The node may be left out where only one node has that instance.

    The end of a removed pod's output is kept for an hour: name its node, too.
    """
    node, instance = await locate(invocation, pod)
    await cli_logs.stream(invocation, node, instance, cli_logs.LogChoice(**options))


async def locate(invocation: Invocation, text: str) -> tuple[str, str]:
    """The node and the instance that a name means.

    Raises:
        InputInvalid: no such name can be. NotFound: no node has it. Ambiguous: several nodes have it.
    """
    if text.count("/") == 2:
        text = text.removeprefix("pod/")  # as -o name prints it
    node, slash, instance = text.rpartition("/")
    if slash:
        return valid_segment(node, "node"), valid_instance(instance)
    valid_instance(instance)
    keys = invocation.keys
    page = await invocation.client.keys(keys.tree("intent"))
    found = [place for place in families.intent_places(keys, page.items) if place[1] == instance]
    if not found:
        hint = "farmctl pod list shows them as NODE/INSTANCE"
        raise NotFound(f"pod {instance!r} does not exist", kind="pods", id=instance, hint=hint)
    if len(found) > 1:
        shown = ", ".join(f"{name}/{instance}" for name, _ in found[:5])
        raise Ambiguous(f"pod {instance!r} runs on {len(found)} nodes, name one: {shown}", kind="pods")
    return found[0]


# ``farmctl pod describe``: one pod, what it runs, and how its last starts ended.


@command("describe")
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
async def describe(invocation: Invocation, pod: str) -> None:
    """One pod: its owner, what its node reports, and what it runs.

    The node may be left out where only one node has that instance.
    """
    place = await locate(invocation, pod)
    found = await overview.pods(invocation.client, invocation.keys)
    rows = [row for row in found.rows if (row.node, row.instance) == place]
    if not rows:
        raise NotFound(f"pod {'/'.join(place)} does not exist", kind="pods", id="/".join(place))
    await _show(invocation, min(rows, key=lambda row: row.gone))
    for broken in found.broken:
        click.echo(f"farmctl: broken record left out: {clean(broken)}", err=True)


async def _show(invocation: Invocation, row: PodRow) -> None:
    output = invocation.settings.output
    manifest, runs = await manifest_facts.read(invocation.call, row.manifest)
    found, unknown = OfPod(), ""
    if row.pid and output != "name":
        found, unknown = await cli_usage.of_pod(invocation, row.node, row.instance)
    used = found.usage
    if output in {"json", "yaml"}:
        asked = {"usage": plain(used), "logs": plain(found.logs)}
        emit(invocation, document("Pod", plain(row) | asked | {"runs": plain(manifest)}))
    elif output == "name":
        click.echo(f"pod/{row.node}/{row.instance}")
    else:
        told = facts(row, runs, invocation.call.clock.now())
        if used is not None:
            told += usage_facts(used, manifest)
        elif unknown:
            told.append(("Uses", f"unknown: {unknown}"))
        told += log_facts(found.logs)
        say_facts(told + inside(row, manifest, enterable=await _enterable(invocation, row.node)), 15)


async def _enterable(invocation: Invocation, node: str) -> bool:
    """Whether a node's agent runs commands of people."""
    try:
        agent = (await NodeStore(invocation.client, invocation.keys).get(node)).agent
    except StoreError:
        return False  # only a suggestion depends on it
    return agent is not None and features.EXEC in agent.features


def inside(row: PodRow, manifest: Manifest | None, *, enterable: bool) -> list[tuple[str, str]]:
    """How to look inside a pod: through its agent, or on the node where it runs in a container or a unit."""
    if manifest is None or not row.pid:
        return []
    if enterable:
        return [("Look inside", f"farmctl pod exec -it {row.node}/{row.instance} -- /bin/sh")]
    if manifest.runtime == "process":
        return []
    from farmd.agent.model import name_of

    name = name_of(row.node, row.instance)
    command = f"exec -it {name} /bin/sh"
    told = {
        "container": f"docker {command}, or podman {command}",
        "systemd": f"systemctl status {name}.service, and nsenter --target {row.pid} --mount for its files",
    }
    return [("Look inside", f"on {row.node}: {told[manifest.runtime]}")]


# ``farmctl pod restart``.


@command("restart", mutates=True, waits=True)
@click.argument("names", metavar="NODE/INSTANCE...", nargs=-1, required=True, shell_complete=pods)
async def restart(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Restart pods where they are, at once and without their owners' pace.

    The node may be left out where only one node has that instance. "farmctl rc restart" restarts all pods of
    a controller, a few at a time. --wait waits until the pods are available again.
    """
    places = dict.fromkeys([await locate(invocation, name) for name in names])
    asked = [await restarting.restart(invocation.call, *place) for place in places]
    await apply(invocation, [one.mutation for one in asked])
    settings = invocation.settings
    if settings.wait is not True or settings.dry_run:
        return
    for done, one in enumerate(asked):

        def step(row: PodRow, pod: str = one.pod) -> ProgressLine:
            return ProgressLine(f"pod/{pod}", restarting.described(row), 0 if row.healthy else 1, 1)

        with (
            going_on(invocation, [each.mutation for each in asked[done:]]),
            shown(invocation, step) as report,
        ):
            await restarting.restarted(invocation.call, one, settings.timeout, report)
