"""The endpoints about the server itself: leader, version and health."""

from __future__ import annotations

from store.embedded import answers
from store.embedded.calls import DATACENTER, Call
from store.ports import Response


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


def datacenters(_: Call) -> Response:
    """``/v1/catalog/datacenters``."""
    return answers.json([DATACENTER])
