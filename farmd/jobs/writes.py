"""A plan of a job on nodes as changes of pods, for one transaction or several.

What must never break: what a plan changes of the run is written in the transaction of the pods that rest on
it, and where not all of them fit, the run goes with the first: the next cycle sees what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from farmd.farm.writer import Write
from farmd.jobs.facts import Member, Plan, attempt_of
from farmd.jobs.members import is_closed, over
from farmd.jobs.placing import Desk, instance_of, labels_of, rank_of, request_of, slot_of, variables
from farmd.jobs.reader import Facts
from farmd.jobs.report import GIVES_BACK
from farmd.jobs.run_copy import RunCopy
from farmd.pods.changes import NodeChanges, Note, PodChange, grouped, removal, together
from scheduler.model import FleetView
from store import peers
from store.families import RUNS
from store.indexes import Indexes
from store.jobs import Job, Run
from store.keys import Keys
from store.manifests import digest
from store.operations import MAX_OPERATIONS
from store.pods import Place, Pod
from store.reality import Glance, Intent
from store.variables import GANG, MASTER_ADDRESS, MASTER_PORT

# The release of a gang's held members: what each of them is told of the others when it may start.
#
# The ports of all are known by then, so the first slot's address, and with ``peers`` the addresses of all,
# are the same for every member. What must never break: the released ones are never told otherwise. A farm
# that takes over in the middle finishes with the document that the released ones bear. A member that comes
# again alone is told what the others were, except where the first slot itself comes again.

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


# The fence, the record, the run and the audit have operations of their own.
OTHER_OPERATIONS = 8
_OPERATIONS = {"end": 1, "remove": 3, "place": 2, "release": 2}


def units(
    reading: Facts, plan: Plan, told_all: Release | None, view: FleetView, keys: Keys, copy: RunCopy
) -> list[NodeChanges]:
    """The changes of a plan, each of which happens as a whole: with a new run all that fit are one.

    ``told_all`` is what members are told that it releases.
    """
    job, run = reading.stored.record, plan.run or reading.snapshot.run
    changes = list(_changes(reading, plan, run, told_all))
    if plan.run is not None:
        changes = _fitting(changes)
    desk = _booked(job, reading, changes, view)
    made = list(grouped(([change] for change in changes), desk.reservations))
    if plan.run is None:
        return made
    write = Write.over(keys.record(RUNS.name, job.id), plan.run, copy.stored, copy)
    action, reason = audit_words(reading.snapshot.run, plan.run)
    return [together(made, Note((write,), action, reason))]


def _changes(reading: Facts, plan: Plan, run: Run, told_all: Release | None) -> Iterator[PodChange]:
    """What changes of each pod: ends first, because they free room."""
    job, now, closed = reading.stored.record, reading.snapshot.now, over(run)
    going = {member.id for member in plan.remove} | _spent(reading, closed)
    for member in reading.standing:
        place, state = reading.state(member)
        if member.id in going or not member.over or member.cause == "evicted" or state.pod.record.done:
            continue
        if is_closed(closed, member.slot) or run.outcome or attempt_of(run, member.slot) > member.attempt:
            done = msgspec.structs.replace(state.pod.record, done=True)
            yield PodChange("end", *place, done, None, state.pod, state.intent)
    for place, state in (reading.pods[ident] for ident in sorted(going)):
        yield removal(place, state)
    for member in plan.release:
        place, state = reading.state(member)
        assert state.intent is not None
        assert told_all is not None
        yield PodChange(
            "release", *place, state.pod.record, told_all.of(state.intent.record), state.pod, state.intent
        )
    # Members of a type share one record, which is then encoded once.
    pods = {kind.name: Pod(kind.manifest, labels_of(job, kind), now) for kind in job.types}
    for slot in plan.create:
        pod, attempt = pods[slot.type], attempt_of(run, slot)
        assert reading.places is not None
        intent = Intent(pod.manifest, job.id, vars=variables(job, slot, attempt), hold=job.gang)
        yield PodChange("place", reading.places.nodes[slot], instance_of(job, slot, attempt), pod, intent)


def _spent(reading: Facts, closed: Mapping[str, Indexes]) -> set[str]:
    """Members of arrays that ended well: an array has more slots than agents should remember."""
    arrays = {kind.name for kind in reading.stored.record.types if kind.parallelism}
    return {
        member.id
        for member in reading.standing
        if member.slot.type in arrays and member.phase == "succeeded" and is_closed(closed, member.slot)
    }


def _fitting(changes: Sequence[PodChange]) -> list[PodChange]:
    """The first changes that fit into one transaction, with the reservations of their nodes."""
    found: list[PodChange] = []
    room, nodes = MAX_OPERATIONS - OTHER_OPERATIONS, set[str]()
    for change in changes:
        room -= _OPERATIONS[change.action] + (change.node not in nodes)
        nodes.add(change.node)
        if room < 0:
            break
        found.append(change)
    return found


def _booked(job: Job, reading: Facts, changes: Sequence[PodChange], view: FleetView) -> Desk:
    """The reservations after these changes."""
    desk = Desk.over(view)
    desk.free((each.node, each.instance) for each in changes if each.action in ("end", "remove"))
    coming: dict[str, list[Place]] = {}
    for each in changes:
        if each.action == "place":
            coming.setdefault(_type_of(job, each.instance), []).append((each.node, each.instance))
    for kind in job.types:
        if places := coming.get(kind.name):
            desk.reserve(request_of(job, kind, reading.manifests[kind.manifest]), places)
    return desk


def _type_of(job: Job, instance: str) -> str:
    found = slot_of(job, instance)
    return found[0].type if found is not None else ""


def audit_words(before: Run, after: Run) -> tuple[str, str]:
    """The action and the reason of a new run, for the audit."""
    if after.outcome != before.outcome:
        return f"job.{after.outcome}", ": ".join(filter(None, (after.reason, after.message)))
    if after.attempt > before.attempt:
        return "job.restart", f"attempt {after.attempt} of all members"
    if after.gave_back > before.gave_back:
        return "job.give_back", GIVES_BACK
    if after.started != before.started:
        return ("job.start", "") if after.started else ("job.suspend", "")
    done = _sum(after.done) - _sum(before.done)
    tried = [
        f"{name}/{index} attempt {each.attempt}"
        for name, slots in after.slots.items()
        for index, each in slots.items()
        if before.slots.get(name, {}).get(index) != each
    ]
    if tried:
        return "job.retry", ", ".join(tried)
    return "job.progress", f"{done} more done" if done else ""


def _sum(closed: Mapping[str, str]) -> int:
    return sum(len(Indexes(text)) for text in closed.values())
