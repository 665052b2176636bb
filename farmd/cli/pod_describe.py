"""``farmctl pod describe``: one pod, what it runs, and how its last starts ended."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import pods
from farmd.cli.options import command
from farmd.cli.output import document, emit
from farmd.cli.pod_logs import locate
from farmd.overview import PodRow
from farmd.tables import manifests as manifest_facts
from farmd.tables.model import clean
from farmd.tables.words import ago, pairs
from store.errors import NotFound
from store.manifests import Manifest
from store.reality import Exit, ending
from store.times import plain, rfc3339


@command("describe")
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
async def describe(invocation: Invocation, pod: str) -> None:
    """One pod: its owner, what its node says of it, and what it runs.

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
    if output in {"json", "yaml"}:
        emit(invocation, document("Pod", plain(row) | {"runs": plain(manifest)}))
    elif output == "name":
        click.echo(f"pod/{row.node}/{row.instance}")
    else:
        told = facts(row, runs, invocation.call.clock.now())
        for title, text in told + inside(row, manifest):
            click.echo(f"{title + ':':<15}{clean(text)}".rstrip())


def inside(row: PodRow, manifest: Manifest | None) -> list[tuple[str, str]]:
    """How to look inside a pod that runs in a container or a unit."""
    if manifest is None or manifest.runtime == "process" or not row.pid:
        return []
    from farmd.agent.runtimes.container_config import name_of

    name = name_of(row.node, row.instance)
    command = f"exec -it {name} /bin/sh"
    told = {
        "container": f"docker {command}, or podman {command}",
        "systemd": f"systemctl status {name}.service, and nsenter --target {row.pid} --mount for its files",
    }
    return [("Look inside", f"on {row.node}: {told[manifest.runtime]}")]


def facts(row: PodRow, runs: list[tuple[str, str]], now: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for a pod; ``runs`` are those of its manifest, ``now`` is in seconds since
    the epoch.
    """
    told = [
        ("Pod", row.instance),
        ("Node", row.node),
        ("Owner", row.owner_name or f"{row.owner} (gone)"),
        ("Phase", row.phase + (f": {row.reason}" if row.reason else "")),
        *([("Prepares", row.preparing)] if row.preparing else []),
        ("Health", row.health + (f" for {ago(now, row.health_since)}" if row.health_since else "")),
        ("Age", ago(now, row.placed_at)),
        ("Started", _started(row, now)),
        ("Restarts", str(row.restarts)),
    ]
    told += [
        ("Exit", f"{rfc3339(end.at)}, {ago(now, end.at)} ago, {_ending(end)}") for end in reversed(row.exits)
    ]
    told += [("Pid", str(row.pid))] if row.pid else []
    told += [("Serves on", pairs(row.ports))] if row.ports else []
    return [*told, ("Labels", pairs(row.labels)), ("Manifest", row.manifest), *runs]


def _started(row: PodRow, now: float) -> str:
    if row.started:
        return f"{rfc3339(row.started)}, {ago(now, row.started)} ago"
    return "not now" if row.exits else "never"


def _ending(end: Exit) -> str:
    """How a start ended, and what it said of that."""
    how = {"lost": "nobody saw how", "oom": f"out of memory, {ending(end.code)}"}.get(
        end.cause, ending(end.code)
    )
    return f"{how}: {clean(end.message)}" if end.message else how
