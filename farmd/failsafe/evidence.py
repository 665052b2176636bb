"""The evidence that freezes removals: signs that what a farm reads is not the truth (R19)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from farmd.cache.caches import Caches
from store.cache import PrefixCache
from store.errors import NoLeader, NotRegistered
from store.families import FAMILIES
from store.keys import Keys

UNDECODABLE_SHARE = 0.2
LOST_SHARE = 0.5
LOST_AT_LEAST = 2
FAILING_SHARE = 0.5
FAILING_AT_LEAST = 20
NO_LEADER = "store: no leader"
"""It binds the farm that is refused, and no other: where it could be recorded, there is a leader."""


def evidence(
    caches: Caches, keys: Keys, kind: str, *, renewed: Callable[[], bool]
) -> list[Callable[[], str | None]]:
    """The checks whose findings freeze removals of a kind (R19). ``renewed``: its session is in force.

    Of a kind whose items lie outside of Consul, only Consul itself is checked here; the kind adds the rest.
    """
    records: list[PrefixCache[Any]] = [*caches.owners(), caches.nodes, caches.agents]
    outside = not FAMILIES[kind].cached
    if not outside and (own := caches.tree(FAMILIES[kind])) not in records:
        records.append(own)

    def doubtful() -> str | None:
        trees = [*records, caches.pods, caches.intent]
        return next((tree.doubt for tree in trees if tree.ready.is_set() and tree.doubt), None)

    def leaderless() -> str | None:
        # A leader renewed the session: only the server that was asked heard none, or for less than the TTL.
        refused = any(isinstance(tree.error, NoLeader) for tree in records)
        return NO_LEADER if refused and not renewed() else None

    def broken() -> str | None:
        return next((text for tree in records if (text := undecodable(tree))), None)

    def lost() -> str | None:
        nodes, agents = caches.nodes, caches.agents
        if not (nodes.ready.is_set() and agents.ready.is_set()):
            return None
        # An agent whose record does not decode counts as present.
        present = len(agents.entries) + len(agents.broken)
        absent = mass_loss(len(nodes.entries), present)
        if absent is None:
            return None
        # A drained node may be switched off, so it does not count as missing.
        retired = sum(
            stored.record.drain is not None
            and stored.record.drain.stage == "done"
            and not agents.holds(keys.agent(keys.last_part(key)))
            for key, stored in nodes.entries.items()
        )
        return mass_loss(len(nodes.entries) - retired, present)

    return [doubtful, leaderless] if outside else [doubtful, leaderless, broken, lost]


async def reread(caches: Caches, found: str) -> None:
    """Read again the trees that an evidence rests on; its text begins with the tree that it was found in.

    Raises:
        StoreError: a tree could not be read.
    """
    about = found.partition(":")[0]
    related = {"agents": (caches.nodes, caches.agents), "health": (caches.reality,)}
    named = [tree for tree in caches.all() if tree.family == about]
    for tree in related.get(about, named):
        with contextlib.suppress(NotRegistered):  # the lack of a sentinel is the evidence
            await tree.barrier()


def undecodable(tree: PrefixCache[Any]) -> str | None:
    """Evidence: too large a share of a tree's records does not decode."""
    if too_many_broken(len(tree.broken), len(tree.broken) + len(tree.entries)):
        return f"{tree.family}: more than {UNDECODABLE_SHARE:.0%} of the records do not decode"
    return None


def too_many_broken(broken: int, whole: int) -> bool:
    """Whether too large a share does not decode; a single record proves nothing."""
    return broken > 1 and broken > UNDECODABLE_SHARE * whole


def mass_loss(registered: int, present: int) -> str | None:
    """Evidence: more than half of the registered nodes, and no fewer than two, have no agent.

    That points at the network. A single absent node proves nothing.
    """
    absent = registered - present
    if absent >= LOST_AT_LEAST and absent > LOST_SHARE * registered:
        return f"agents: more than {LOST_SHARE:.0%} of the nodes are absent"
    return None


def mass_failure(failing: int, instances: int) -> str | None:
    """Evidence: more than half of all instances fail; moving them would not mend that (R19)."""
    if failing >= FAILING_AT_LEAST and failing > FAILING_SHARE * instances:
        return f"health: more than {FAILING_SHARE:.0%} of the instances fail"
    return None
