"""Consul's policy and token for each role of farmd, from the rules in ``acl/``.

Neither is a record of farmd, so this writes no audit record: Consul keeps a token's description. A policy
that differs from the rules may have been changed by a person; it is replaced only if a person says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from farmd.config import shipped
from store.errors import refuse
from store.keys import Keys, name_shard, valid_name
from store.mistakes import shown

if TYPE_CHECKING:
    from store.consul.acl import Acl

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
_CONSUL = re.compile(r"[A-Za-z0-9._-]{1,128}")

ROLES: Mapping[str, tuple[str, ...]] = {
    "farm": ("farm",),
    "operator": ("operator",),
    "reader": ("reader",),
    "repair": ("operator", "repair"),
    "exec": ("reader", "exec"),
    "agents": ("agents",),
    "starter": ("starter",),
}
"""The files of ``acl/`` whose rules a role needs. An agent of one node has a policy of its own."""


def of_role(keys: Keys, role: str) -> dict[str, str]:
    """The policies of a role by their names."""
    return {_named(keys, file): _rules(keys, file) for file in ROLES[role]}


def of_node(keys: Keys, node: str, consul_node: str) -> dict[str, str]:
    """The policy of one node's agent; its sessions belong to ``consul_node`` of Consul's catalogue.

    Raises:
        InputInvalid: a bad name.
    """
    if _CONSUL.fullmatch(consul_node) is None:  # it becomes a part of the rules
        refuse("--consul-node", shown(consul_node), "letters, digits, '.', '_' and '-'")
    values = {"NODE": valid_name(node), "SHARD": name_shard(node), "CONSUL": consul_node}
    rules = _rules(keys, "agent")
    for name, value in values.items():
        rules = rules.replace(f"@{name}@", value)
    return {_named(keys, f"agent-{node}"): rules}


async def address_of(acl: Acl, name: str) -> str:
    """The address that Consul's catalogue has of a node, whose sessions alone the policy will allow.

    Raises:
        InputInvalid: there is no such node.
    """
    known = await acl.nodes()
    if name not in known:
        few = ", ".join(sorted(known)[:5]) + (", …" if len(known) > 5 else "")
        refuse("--consul-node", repr(name), f"a name of `consul catalog nodes`: {few or 'it lists none'}")
    # Others write the catalogue, and a person runs the line that this becomes a part of as root.
    if _HOST.fullmatch(known[name]) is None:
        found = f"the address {shown(known[name])} of {name!r} in Consul's catalogue"
        refuse("--consul-node", found, "a host")
    return known[name]


async def put_policies(acl: Acl, policies: Mapping[str, str], *, replace: bool) -> dict[str, str]:
    """Have these policies; what became of each. One that differs stays, unless it is to be replaced.

    Raises:
        AccessDenied: the token may not write ACLs.
    """
    return {name: await _have(acl, name, rules, replace=replace) for name, rules in policies.items()}


async def bearers(acl: Acl, name: str) -> list[str]:
    """The accessors of the tokens that have a policy; none if there is no such policy."""
    known = await acl.policy(name)
    return [] if known is None else sorted(each.accessor for each in await acl.tokens(known))


async def _have(acl: Acl, name: str, rules: str, *, replace: bool) -> str:
    known = await acl.policy(name)
    if known is not None and known.rules == rules:
        return "as it should be"
    if known is not None and not replace:
        return "kept, although its rules differ from this version's: --policy-only replaces them"
    await acl.put_policy(name, rules, known)
    return "created" if known is None else "replaced"


def _rules(keys: Keys, file: str) -> str:
    return shipped.text(f"acl/{file}.hcl").replace('"farmd/', f'"{keys.prefix}')


def _named(keys: Keys, what: str) -> str:
    """Clusters under other prefixes of the same Consul have policies of their own."""
    return f"{keys.prefix.rstrip('/').replace('/', '-')}-{what}"
