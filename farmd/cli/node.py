"""``farmctl node``: the group; its commands live in ``node_show``, ``node_edit``, ``node_drain``,
``access_token``.
"""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup

_COMMANDS = {
    "list": ("farmd.cli.node_show:list_", "All nodes."),
    "describe": ("farmd.cli.node_show:describe", "One node with its pods."),
    "register": ("farmd.cli.node_edit:register", "Register nodes before their agents start."),
    "label": ("farmd.cli.node_edit:label", "Set and remove labels."),
    "taint": ("farmd.cli.node_edit:taint", "Keep new pods off a node unless they tolerate it."),
    "untaint": ("farmd.cli.node_edit:untaint", "Remove taints of a node."),
    "capacity": ("farmd.cli.node_edit:capacity", "Set what the pods of a node may request in total."),
    "set": ("farmd.cli.node_edit:set_", "Set the address and the signature policy of a node."),
    "cordon": ("farmd.cli.node_edit:cordon", "Keep new pods away from a node."),
    "uncordon": ("farmd.cli.node_edit:uncordon", "Allow pods on a node again; ends its drain."),
    "drain": ("farmd.cli.node_edit:drain", "Move all pods off a node."),
    "undrain": ("farmd.cli.node_edit:undrain", "End a drain."),
    "token": ("farmd.cli.access_token:node_token", "Create the Consul policy and token of a node's agent."),
    "forget": ("farmd.cli.node_edit:forget", "Forget nodes that are gone for good."),
}


@click.group("node", cls=LazyGroup, lazy=_COMMANDS)
def node() -> None:
    """Nodes: list, register, label, taint, cordon, drain, forget, tokens."""
