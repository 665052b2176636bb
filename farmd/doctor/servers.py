"""Checks that all servers of Consul are there, as their leader sees them.

A server that the others reach, and that lags, hears the leader late or has no vote, may be well soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.doctor.model import Finding, Report
from store.consul.answers import Server, ServersHealth
from store.errors import AccessDenied
from store.words import count_of

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

FACT, CODE = "consul servers", "consul-server"


async def told(client: ConsulClient) -> ServersHealth | None:
    """What the leader tells of the servers; None if the token may not read it.

    Raises:
        StoreError: it cannot be reached.
    """
    try:
        return await client.servers()
    except AccessDenied:
        return None


def check(found: ServersHealth | None) -> Report:
    """How many servers there are, with findings of those that the others do not reach.

    Consul takes a server that went away out of their number after some seconds. An even number tells of that.
    """
    if found is None:
        return Report({FACT: "unknown: the token may not read them, which needs operator:read"})
    servers = found.servers or ()
    if not servers:
        return Report({FACT: "unknown: the leader does not report them yet"})
    well = sum(server.healthy for server in servers)
    gone = [server for server in servers if server.serf_status != "alive"]
    findings = [_gone(found, server) for server in gone]
    if len(servers) % 2 == 0 and not gone:
        findings.append(_even(found, len(servers)))
    return Report(
        {FACT: f"{well} of {len(servers)} are healthy, {found.failure_tolerance} may be lost"},
        tuple(findings),
    )


def late(found: ServersHealth | None) -> list[Finding]:
    """Findings of servers that the others reach and that do not help yet, perhaps only for a moment.

    A server without a vote may be meant so where others may be lost.
    """
    if found is None:
        return []
    there = [server for server in found.servers or () if server.serf_status == "alive"]
    lagging = [
        _finding(found, server, "lags behind its leader", "look at its log, its load and its network")
        for server in there
        if not server.healthy
    ]
    silent = [
        _finding(found, server, "has no vote", "look at the leader's log: Consul gives one after ten seconds")
        for server in there
        if server.healthy and not (server.voter or found.failure_tolerance)
    ]
    return lagging + silent


def _gone(found: ServersHealth, server: Server) -> Finding:
    what = f"cannot be reached by the others ({server.serf_status})"
    return _finding(found, server, what, "start it again, or replace it with another one")


def _even(found: ServersHealth, count: int) -> Finding:
    text = f"Consul has {count} servers, an even number, so one is probably missing: {_left(found)}"
    return Finding(CODE, "consul", text, "consul members: start the missing server again, or add one")


def _finding(found: ServersHealth, server: Server, what: str, fix: str) -> Finding:
    text = f"Consul's server {server.name} ({server.address}) {what}: {_left(found)}"
    return Finding(CODE, f"consul/{server.name}", text, fix)


def _left(found: ServersHealth) -> str:
    more = found.failure_tolerance
    return (
        f"{count_of(more, 'more server')} may be lost"
        if more
        else "if one more is lost, nothing can be written"
    )
