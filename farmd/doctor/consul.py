"""Checks that Consul is fit for farmd: leader, version, limits, servers, elections, and its disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from farmd.doctor.model import Finding, Report
from farmd.doctor.survey import Survey
from store import quantities
from store.consul.answers import AgentConfig, AgentSelf, Server, ServersHealth
from store.errors import AccessDenied, InputInvalid
from store.farms import Member
from store.manifests import MAX_MANIFEST_BYTES
from store.sessions import MARGIN, RENEWALS
from store.words import count_of, size_text

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

NO_LEADER = "no-leader"
OLDEST = (1, 8)
# A farm parks up to 64 queries and needs further connections to write.
CONNECTIONS = 100
VALUE_BYTES = MAX_MANIFEST_BYTES
TRANSACTION_BYTES = MAX_MANIFEST_BYTES * 4 // 3 + 64 * 1024


async def told(client: ConsulClient) -> AgentSelf:
    """The settings of Consul's agent; all of them are empty if the token may not read them.

    Raises:
        StoreError: it cannot be reached.
    """
    try:
        return await client.agent()
    except AccessDenied:
        return AgentSelf(AgentConfig(node_name="", version=""))


async def check(client: ConsulClient, own: AgentSelf) -> Report:
    """Ask the server for its leader, and judge the settings of its agent.

    Raises:
        StoreError: it cannot be reached at all.
    """
    leader = await client.leader()
    findings = []
    if not leader:
        findings.append(
            Finding(
                NO_LEADER,
                "consul",
                "Consul has no leader: nothing can be written, and farms freeze",
                "run consul operator raft list-peers and the servers' logs",
            )
        )
    facts = {"consul leader": leader or "none"}
    version, limits = own.config.version, own.debug_config
    if not version:  # a reader's token need not read the servers' configuration
        return Report({**facts, "consul version": "unknown: the token may not read it"}, tuple(findings))
    findings += _version(version)
    for name, found, needed in (
        ("http_max_conns_per_client", limits.http_max_conns_per_client, CONNECTIONS),
        ("kv_max_value_size", limits.kv_max_value_size, VALUE_BYTES),
        ("txn_max_req_len", limits.txn_max_req_len, TRANSACTION_BYTES),
    ):
        # 0 and a missing value both mean no limit.
        if found and found < needed:
            findings.append(
                Finding(
                    "consul-limit",
                    f"consul/{name}",
                    f"limits.{name}: found {found}, expected at least {needed}",
                    "raise it in Consul's configuration, or remove it",
                )
            )
    return Report({**facts, "consul version": version}, tuple(findings))


def _version(version: str) -> list[Finding]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return []
    return [
        Finding(
            "consul-old",
            "consul",
            f"Consul {version}: expected {'.'.join(map(str, OLDEST))} or newer, older ones were never tested",
            "upgrade Consul",
        )
    ]


# The servers of Consul, as their leader sees them. A server that the others reach, and that lags, hears the
# leader late or has no vote, may recover soon.


FACT, CODE = "consul servers", "consul-server"


async def servers_told(client: ConsulClient) -> ServersHealth | None:
    """What the leader says about the servers; None if the token may not read it.

    Raises:
        StoreError: it cannot be reached.
    """
    try:
        return await client.servers()
    except AccessDenied:
        return None


def check_servers(found: ServersHealth | None) -> Report:
    """The number of servers, with findings about those that the others do not reach.

    Consul stops counting a server that went away after some seconds, so an even number is reported, too.
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


def late_servers(found: ServersHealth | None) -> list[Finding]:
    """Findings of servers that the others reach and that do not help yet, perhaps only for a moment.

    A server without a vote may be intended if others may be lost.
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


# Elections of Consul's leader, which the sessions of farms must outlive.


# A server stands for election after one to two heartbeats without its leader.
HEARTBEATS = 2
# How much of the TTL is left at least when the leader is lost.
LEFT = 1 - MARGIN - 1 / RENEWALS


def check_elections(survey: Survey, heartbeat: str) -> Iterator[Finding]:
    """Farms that suspend their work at each election; ``heartbeat`` is Consul's, as Go writes it."""
    try:
        election = HEARTBEATS * quantities.seconds(heartbeat)
    except InputInvalid:
        return  # not told
    for entry, member in survey.decoded("farms", Member):
        if 0 < member.ttl * LEFT < election:
            yield Finding(
                "ttl-short",
                survey.short(entry.key),
                f"its session lasts {member.ttl:g} s and is renewed every {member.ttl / RENEWALS:.1f} s; a"
                f" new leader of Consul may take {election:g} s (heartbeat {heartbeat}):"
                " its work pauses meanwhile",
                "set performance.raft_multiplier = 1 in Consul's servers, or farm.ttl to"
                f" {int(election / LEFT) + 1} or more",
            )


# The size of Consul's log, and the room on its disk, if Consul runs on this machine.


LOG_BYTES = 1 << 30
FREE_BYTES = 1 << 30
DISK_FACT = "consul disk"


def check_disk(directory: str, node_id: str) -> Report:
    """The fact, and what is wrong with it; ``directory`` is empty if Consul does not tell where its data is.

    The agent's data directory holds its node id, so a folder of the same name elsewhere is not taken for it.
    """
    if not directory:
        return _unknown("Consul does not report its data directory")
    folder = Path(directory)
    try:
        if (folder / "node-id").read_text(errors="replace").strip() != node_id:
            return _unknown(f"{directory} of this machine belongs to another Consul")
        log = (folder / "raft" / "raft.db").stat().st_size
        free = shutil.disk_usage(folder).free
    except (FileNotFoundError, NotADirectoryError):
        return _unknown(f"no server of Consul has {directory} on this machine")
    except PermissionError:
        return _unknown(f"this user may not read {directory}")
    except OSError as error:
        return _unknown(f"{directory} of this machine cannot be read: {error.strerror}")
    fact = f"{directory}: raft.db {size_text(log)}, {size_text(free)} free"
    return Report({DISK_FACT: fact}, tuple(judge(directory, log, free)))


def judge(directory: str, log: int, free: int) -> Iterator[Finding]:
    """What is wrong with a log of that size beside that much room, in bytes."""
    needed = max(FREE_BYTES, 2 * log)
    if free < needed:
        yield Finding(
            "consul-disk",
            f"consul{directory}",
            f"free: found {size_text(free)}, expected at least {size_text(needed)}, enough for a snapshot"
            " and a copy of the log: on a full disk every write fails",
            "free some space, or give Consul a larger disk",
        )
    if log > LOG_BYTES:
        yield Finding(
            "consul-log",
            f"consul{directory}/raft/raft.db",
            f"found {size_text(log)}, expected at most {size_text(LOG_BYTES)}: the file never shrinks, and"
            " each write of a large one takes longer",
            "one server after the other: consul leave, empty its data directory, start it. A single server:"
            " consul snapshot save, empty it, consul snapshot restore",
        )


def _unknown(why: str) -> Report:
    return Report({DISK_FACT: f"unknown: {why}"})
