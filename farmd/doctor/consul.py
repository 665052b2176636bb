"""Checks that Consul is fit for farmd: a leader, a tested version, high enough limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from farmd.doctor.model import Finding, Report
from store.consul.answers import AgentConfig, AgentSelf
from store.errors import AccessDenied
from store.manifests import MAX_MANIFEST_BYTES

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

NO_LEADER = "no-leader"
OLDEST = (1, 8)
# A farm parks up to 64 queries and needs further connections to write.
CONNECTIONS = 100
VALUE_BYTES = MAX_MANIFEST_BYTES
TRANSACTION_BYTES = MAX_MANIFEST_BYTES * 4 // 3 + 64 * 1024


async def told(client: ConsulClient) -> AgentSelf:
    """What the agent of Consul tells of itself; all of it is empty if the token may not read it.

    Raises:
        StoreError: it cannot be reached.
    """
    try:
        return await client.agent()
    except AccessDenied:
        return AgentSelf(AgentConfig(node_name="", version=""))


async def check(client: ConsulClient, own: AgentSelf) -> Report:
    """Ask the server for its leader, and judge what its agent told of itself.

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
