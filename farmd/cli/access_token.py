"""``farmctl node token`` and ``farmctl token consul``: Consul's policies and tokens for farmd's roles.

The token is the only line on stdout, so that it goes through a pipe to where it is needed. It is never an
argument of a command: those lie in a shell's history, and every process can see them.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, target
from farmd.cli.options import command
from farmd.cli.output import document, emit
from farmd.commands import tokens

_POLICY_ONLY = click.option(
    "--policy-only",
    is_flag=True,
    help="Only create or replace the policy, such as after an upgrade; create no token.",
)


@command("token", mutates=True)
@target("node", nodes)
@click.option(
    "--consul-node",
    metavar="NAME",
    help="Name in Consul of the Consul agent that the node uses; default: NAME.",
)
@_POLICY_ONLY
async def node_token(invocation: Invocation, name: str, consul_node: str | None, policy_only: bool) -> None:
    """Create the Consul policy and token of one node's agent, and print what to run there.

    Needs a token that may write ACLs and read nodes. The token is the only line on stdout.
    """
    policies = tokens.of_node(invocation.keys, name, consul_node or name)
    if invocation.settings.dry_run:
        _show(policies)
        return
    acl = invocation.client.acl
    # A token without the right to ACLs may see no node either, and should hear of the former.
    older = [accessor for policy in policies for accessor in await tokens.bearers(acl, policy)]
    address = await tokens.address_of(acl, consul_node or name)
    for accessor in older:
        invocation.say(f"it already has a token, which stays valid: consul acl token delete -id {accessor}")
    use = f"on {name}, as root: farmd init node --name {name} --address {address} --token-file -"
    await _make(invocation, policies, f"farmd: the agent of {name}", use, policy_only)


@command("consul", mutates=True)
@click.argument("role", type=click.Choice([*tokens.ROLES]))
@_POLICY_ONLY
async def role_token(invocation: Invocation, role: str, policy_only: bool) -> None:
    """Create the Consul policies of a role, and a token: for farms, people, or agents that share one.

    Needs a token that may write ACLs. The token is the only line on stdout.
    """
    policies = tokens.of_role(invocation.keys, role)
    if invocation.settings.dry_run:
        _show(policies)
        return
    uses = {
        "farm": "on a farm's host, as root: farmd init server --token-file -",
        "agents": "on each node, as root: farmd init node --token-file -",
    }
    use = uses.get(role, "from a file of mode 0600 that CONSUL_HTTP_TOKEN_FILE names")
    await _make(invocation, policies, f"farmd: {role}", use, policy_only)


def _show(policies: Mapping[str, str]) -> None:
    for name, rules in policies.items():
        click.echo(f"# policy {name}\n{rules}")


async def _make(
    invocation: Invocation, policies: Mapping[str, str], description: str, use: str, policy_only: bool
) -> None:
    acl = invocation.client.acl
    for name, what in (await tokens.put_policies(acl, policies, replace=policy_only)).items():
        invocation.say(f"policy {name}: {what}")
    if policy_only:
        return
    token = await acl.create_token(description, [*policies])
    if invocation.settings.output in {"json", "yaml"}:
        content = {"accessor": token.accessor, "secret": token.secret, "policies": [*policies]}
        emit(invocation, document("Token", content))
        return
    invocation.say(f"this token is not shown again; use it {use}")
    click.echo(token.secret)
