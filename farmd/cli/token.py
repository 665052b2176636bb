"""``farmctl token create | consul``, ``farmctl node token``: for the page and its API, and for Consul."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import click

from farmd.cli.groups import Commands, LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, target
from farmd.cli.options import Exampled, command
from farmd.cli.output import document, emit
from farmd.commands import tokens as consul_tokens
from farmd.web import tokens
from store.errors import Conflict, InputInvalid


def _commands() -> Commands:
    line = "Create Consul's policies and a token for a role."
    return {"consul": (lambda: role_token, line)}


@click.group("token", cls=LazyGroup, lazy=_commands)
def token() -> None:
    """Tokens of people and programs: for the farm's page and API, and for Consul."""


@click.command("create", cls=Exampled)
@click.argument("name")
@click.option(
    "--role", required=True, type=click.Choice(get_args(tokens.Role)), help="An operator may also act."
)
@click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="Add the line to this file."
)
def create(name: str, role: Literal["viewer", "operator"], path: Path | None) -> None:
    """Create a token for NAME; it is shown once, and only its hash is kept.

    The line goes into the file that web.tokens names; with --file it is added there.
    """
    made, line = tokens.made(name, role)
    if path is not None:
        _add(path, name, line)
        click.echo(made)
        return
    click.echo(f"token: {made}")
    click.echo(f"line:  {line}")


def _add(path: Path, name: str, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another create must not add the name in between
            if name in tokens.read(str(path)):
                hint = "delete its line first to replace the token"
                raise Conflict(f"{path} has a token of {name!r} already", hint=hint)
            unended = file.read()[-1:] not in {b"", b"\n"}
            file.write(b"\n" * unended + line.encode() + b"\n")
    except OSError as error:
        raise InputInvalid(f"--file: {path}: {error.strerror or error}", field="file") from error


token.add_command(create)


# ``farmctl node token`` and ``farmctl token consul``: Consul's policies and tokens for farmd's roles.
#
# The token is the only line on stdout, so that it can be piped to where it is needed. It is never an argument
# of a command: arguments are in a shell's history, and every process can see them.


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
    policies = consul_tokens.of_node(invocation.keys, name, consul_node or name)
    if invocation.settings.dry_run:
        _show_policies(policies)
        return
    acl = invocation.client.acl
    # A token without the right to ACLs may see no node either, and should hear of the former.
    older = [accessor for policy in policies for accessor in await consul_tokens.bearers(acl, policy)]
    address = await consul_tokens.address_of(acl, consul_node or name)
    for accessor in older:
        invocation.say(f"it already has a token, which stays valid: consul acl token delete -id {accessor}")
    use = f"on {name}, as root: farmd init node --name {name} --address {address} --token-file -"
    await _make(invocation, policies, f"farmd: the agent of {name}", use, policy_only)


@command("consul", mutates=True)
@click.argument("role", type=click.Choice([*consul_tokens.ROLES]))
@_POLICY_ONLY
async def role_token(invocation: Invocation, role: str, policy_only: bool) -> None:
    """Create the Consul policies of a role, and a token: for farms, people, or agents that share one.

    Needs a token that may write ACLs. The token is the only line on stdout.
    """
    policies = consul_tokens.of_role(invocation.keys, role)
    if invocation.settings.dry_run:
        _show_policies(policies)
        return
    uses = {
        "farm": "on a farm's host, as root: farmd init server --token-file -",
        "agents": "on each node, as root: farmd init node --token-file -",
    }
    use = uses.get(role, "from a file of mode 0600 that CONSUL_HTTP_TOKEN_FILE names")
    await _make(invocation, policies, f"farmd: {role}", use, policy_only)


def _show_policies(policies: Mapping[str, str]) -> None:
    for name, rules in policies.items():
        click.echo(f"# policy {name}\n{rules}")


async def _make(
    invocation: Invocation, policies: Mapping[str, str], description: str, use: str, policy_only: bool
) -> None:
    acl = invocation.client.acl
    for name, what in (await consul_tokens.put_policies(acl, policies, replace=policy_only)).items():
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
