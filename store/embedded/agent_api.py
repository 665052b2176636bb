"""The endpoints about the server itself: leader, version, and its one node."""

from __future__ import annotations

from store.embedded import answers
from store.embedded.answers import Query, Reading
from store.embedded.calls import DATACENTER, Call
from store.ports import Response

_NODE_INDEX = 3
META = "embedded:true"


def leader(call: Call) -> Response:
    """``/v1/status/leader``: this server."""
    return answers.json(call.identity.address)


def peers(call: Call) -> Response:
    """``/v1/status/peers``: this server."""
    return answers.json([call.identity.address])


def servers(call: Call) -> Response:
    """``/v1/operator/autopilot/health``: this server is alone, and healthy as long as it answers."""
    server = {
        "ID": call.identity.node_id,
        "Name": call.identity.node,
        "Address": call.identity.address,
        "SerfStatus": "alive",
        "Version": call.identity.version,
        "Leader": True,
        "LastContact": "0s",
        "Healthy": True,
        "Voter": True,
    }
    return answers.json({"Healthy": True, "FailureTolerance": 0, "Servers": [server]})


def this(call: Call) -> Response:
    """``/v1/agent/self``: the fields that clients read, such as the imitated version."""
    call.options()
    host, _, port = call.identity.address.rpartition(":")
    config = {
        "Datacenter": DATACENTER,
        "NodeName": call.identity.node,
        "NodeID": call.identity.node_id,
        "Revision": "",
        "Server": True,
        "Version": call.identity.version,
    }
    member = {"Name": call.identity.node, "Addr": host, "Port": int(port), "Status": 1, "Tags": {}}
    return answers.json({"Config": config, "Member": member, "Meta": {"embedded": "true"}})


def nodes(call: Call) -> Query:
    """``/v1/catalog/nodes``: one node, which never changes, and which no meta of others finds."""
    call.options()
    if call.params.get("node-meta", META) != META:
        return _constant([])
    host = call.identity.address.rpartition(":")[0]
    node = {
        "ID": call.identity.node_id,
        "Node": call.identity.node,
        "Address": host,
        "Datacenter": DATACENTER,
        "TaggedAddresses": {"lan": host, "wan": host},
        "Meta": {"embedded": "true"},
        "CreateIndex": _NODE_INDEX,
        "ModifyIndex": _NODE_INDEX,
    }
    return _constant([node])


def checks(call: Call) -> Query:
    """``/v1/health/node/<node>``: the serf check, always passing."""
    call.options()
    if call.rest != call.identity.node:
        return _constant([])
    check = {
        "Node": call.identity.node,
        "CheckID": "serfHealth",
        "Name": "Serf Health Status",
        "Status": "passing",
        "Output": "Agent alive and reachable",
        "CreateIndex": _NODE_INDEX,
        "ModifyIndex": _NODE_INDEX,
    }
    return _constant([check])


def datacenters(_: Call) -> Response:
    """``/v1/catalog/datacenters``."""
    return answers.json([DATACENTER])


def _constant(value: list[dict[str, object]]) -> Query:
    reading = Reading(_NODE_INDEX, lambda: answers.json(value, headers=answers.meta(_NODE_INDEX)))
    return Query(lambda: reading, lambda _: lambda: None)
