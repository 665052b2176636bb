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
from farmd.tables.pods import facts
from store.errors import NotFound
from store.manifests import Manifest
from store.times import plain


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
