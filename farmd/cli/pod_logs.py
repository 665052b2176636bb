"""``farmctl pod logs``: what a pod wrote, through its node's agent."""

from __future__ import annotations

import sys

import aiohttp
import click

from farmd.cli.invocation import Invocation
from farmd.cli.names import pods
from farmd.cli.options import command
from farmd.runtime.errors import AgentUnavailable
from store.consul.transport import reason
from store.errors import Ambiguous, NotFound
from store.keys import is_sentinel, valid_instance, valid_segment
from store.nodes import NodeStore


@command("logs")
@click.argument("pod", metavar="NODE/INSTANCE", shell_complete=pods)
@click.option("-f", "--follow", is_flag=True, help="Go on until ^C.")
@click.option(
    "--lines", type=click.IntRange(0, 100_000), default=100, show_default=True, help="How many old lines."
)
async def logs(invocation: Invocation, pod: str, follow: bool, lines: int) -> None:
    """What a pod wrote. The node may be left out where only one node has that instance."""
    node, instance = await _locate(invocation, pod)
    view = await NodeStore(invocation.client, invocation.keys).get(node)
    if view.agent is None or not view.agent.address:
        why = view.unreadable or "its agent is not connected"
        raise AgentUnavailable(
            f"node {node!r}: {why}, so its logs cannot be read from here",
            hint=f"they lie on the node itself; farmctl node describe {node} tells more",
        )
    url = f"http://{view.agent.address.removeprefix('http://').rstrip('/')}/v1/pods/{instance}/logs"
    params = {"lines": str(lines), **({"follow": "1"} if follow else {})}
    try:
        await _stream(url, params, node, instance)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise AgentUnavailable(
            f"node {node!r}: its agent does not answer at {view.agent.address}: {reason(error)}"
        ) from error


async def _stream(url: str, params: dict[str, str], node: str, instance: str) -> None:
    limits = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=None if "follow" in params else 30)
    async with aiohttp.ClientSession(timeout=limits) as http, http.get(url, params=params) as response:
        if response.status == 404:
            raise NotFound(f"pod {node}/{instance} has no logs", kind="pods", id=instance)
        if response.status != 200:
            raise AgentUnavailable(f"node {node!r}: its agent answered {response.status} {response.reason}")
        async for chunk in response.content.iter_any():
            # A workload's own bytes: passed on as they are, as cat would.
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


async def _locate(invocation: Invocation, text: str) -> tuple[str, str]:
    if text.count("/") == 2:
        text = text.removeprefix("pod/")  # as -o name prints it
    node, slash, instance = text.rpartition("/")
    if slash:
        return valid_segment(node, "node"), valid_instance(instance)
    valid_instance(instance)
    keys = invocation.keys
    page = await invocation.client.keys(keys.tree("intent"))
    places = [keys.intent_parts(key) for key in page.items if not is_sentinel(key)]
    found = [place for place in places if place[1] == instance]
    if not found:
        raise NotFound(f"pod {instance!r} does not exist", kind="pods", id=instance)
    if len(found) > 1:
        shown = ", ".join(f"{name}/{instance}" for name, _ in found[:5])
        raise Ambiguous(f"pod {instance!r} stands on {len(found)} nodes, name one: {shown}", kind="pods")
    return found[0]
