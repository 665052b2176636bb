"""The release of a gang's held members: what each of them is told of the others when it may start.

The ports of all are known by then, so the first slot's address, and with ``peers`` the addresses of all, are
the same for every member. What must never break: the released ones are never told otherwise. A farm that
takes over in the middle finishes with the document that the released ones bear. A member that comes again
alone is told what the others were, except where the first slot itself comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from farmd.jobs.model import Member, Plan
from farmd.jobs.nodes.consul import Facts
from farmd.jobs.nodes.instances import rank_of
from store import peers
from store.jobs import Job
from store.manifests import digest
from store.reality import Glance, Intent
from store.variables import GANG, MASTER_ADDRESS, MASTER_PORT

MAIN_PORT = "job"

Host = Callable[[str], str]
"""The address of a node, as its agent says."""


@dataclass(frozen=True, slots=True)
class Release:
    """What released members are told. ``document`` is written before them; empty: it is there already."""

    variables: dict[str, str]
    peers: str = ""
    document: bytes = b""

    def of(self, intent: Intent) -> Intent:
        """A member's intent once it may start."""
        told = {**intent.vars, **self.variables}
        return msgspec.structs.replace(intent, hold=False, vars=told, peers=self.peers)


def release(reading: Facts, plan: Plan, host: Host) -> Release | None:
    """What the members that a plan releases are told; None: it releases none."""
    if not plan.release:
        return None
    job = reading.stored.record
    found = sorted((_peer(job, member, reading, host) for member in plan.release), key=lambda peer: peer.rank)
    told = _told(reading)
    variables = _of_first(found[0]) if told is None or found[0].rank == 0 else {}
    if told is not None:
        before = {name: told.vars[name] for name in sorted(GANG & told.vars.keys())}
        return Release(variables or before, told.peers)
    if not job.peers:
        return Release(variables)
    body = peers.document(found)
    return Release(variables, digest(body), body)


def _told(reading: Facts) -> Intent | None:
    """The intent of a member that was released before, since the job was restarted; the first by rank."""
    job, run = reading.stored.record, reading.snapshot.run
    for member in sorted(
        reading.standing, key=lambda member: (rank_of(job, member.slot), -member.attempt, member.id)
    ):
        intent = reading.state(member)[1].intent
        if intent is not None and not intent.record.hold and member.attempt >= run.attempt:
            return intent.record
    return None


def _of_first(first: peers.Peer) -> dict[str, str]:
    """Where the member with the lowest rank is reached."""
    port = first.ports.get(MAIN_PORT, min(first.ports.values(), default=0))
    return {MASTER_ADDRESS: first.address} | ({MASTER_PORT: str(port)} if port else {})


def _peer(job: Job, member: Member, reading: Facts, host: Host) -> peers.Peer:
    (node, _), state = reading.state(member)
    ports = state.reality.ports if isinstance(state.reality, Glance) else {}
    slot = member.slot
    return peers.Peer(slot.type, slot.index, rank_of(job, slot), host(node), dict(ports))
