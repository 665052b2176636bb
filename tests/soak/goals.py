"""What must be true of a whole fleet some time after the last fault and the last edit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farmd.doctor.examine import examine
from store import codec
from store.daemonsets import DaemonSet
from store.farms import Member
from store.nodes import Agent
from store.status import Status
from tests.fault.invariants import Dump, violations
from tests.fleet import CLOCK
from tests.soak import apps, jobs, schedules
from tests.soak.fleet import Fleet
from tests.soak.rollouts import unended
from tests.soak.sight import Sight


async def unfinished(fleet: Fleet) -> list[str]:
    """Everything that is still to come true; empty when the fleet is as people want it."""
    running = fleet.workloads()
    dump = await fleet.dump()
    well_for = {part.name: part.well_for() for part in fleet.parts}
    sight = Sight(CLOCK.now(), dump, running, fleet.zones, well_for)
    lines = [*_presence(fleet, dump), *_owners(sight), *_realities(sight), *violations(dump), *unended(dump)]
    lines += [*schedules.left(dump), *jobs.left(dump), *apps.left(dump)]
    lines += _sessions(fleet, await fleet.sessions())
    if not lines:
        report = await examine(fleet.client, fleet.keys, CLOCK)
        lines = [f"doctor: {each.code} {each.object}: {each.explanation}" for each in report.findings]
    return lines


def _presence(fleet: Fleet, dump: Dump) -> Iterable[str]:
    """Every process is present, and every lock is that of a farm that is."""
    for family, kind, names in (("farms", Member, fleet.farms), ("agents", Agent, fleet.agents)):
        here = {dump.keys.last_part(key) for key in dump.tree(family, kind)}  # type: ignore[type-var]
        if here != set(names):
            yield f"{family}: absent are {sorted(set(names) - here)}, unknown are {sorted(here - set(names))}"
    farms = {dump.entries[key].session for key in dump.tree("farms", Member)}
    for family, records in (("rcs", dump.rcs), ("daemonsets", dump.daemonsets)):
        for item in records:
            lock = dump.entries.get(dump.keys.lock(family, item))
            if lock is None or lock.session not in farms:
                yield f"no farm that is present holds the lock of {family}/{item}"
    frozen = dump.keys.tree("failsafe")
    yield from (
        f"{key} freezes removals"
        for key in dump.entries
        if key.startswith(frozen) and not key.endswith("present")
    )


def _owners(sight: Sight) -> Iterable[str]:
    """Counts, manifests, places and statuses are what people asked for; what was deleted is gone."""
    dump = sight.dump
    for owner in dump.owners.values():
        pods = {(node, name): pod for (mine, node, name), (_, pod) in dump.pods.items() if mine == owner.id}
        fitting = {node for node in sight.zones if sight.fits(node, owner.node_selector)}
        if owner.deleting:
            yield f"{owner.name} is being deleted and still there"
            continue
        count = len(fitting) if isinstance(owner, DaemonSet) else owner.replicas_desired
        old = [place for place, pod in pods.items() if pod.manifest != owner.manifest]
        if len(pods) != count or old:
            yield f"{owner.name}: {len(pods)} of {count} pods, outdated are {old}"
        astray = sorted(node for node, _ in pods if node not in fitting)
        if astray and (isinstance(owner, DaemonSet) or owner.strategy == "dynamic"):
            yield f"{owner.name}: pods on {astray}, which do not fit {owner.node_selector!r}"
        family = "daemonsets" if isinstance(owner, DaemonSet) else "rcs"
        status = _status(dump, family, owner.id)
        record = dump.entries[dump.keys.record(family, owner.id)]
        if status is None or (status.state, status.healthy) != ("converged", count):
            yield f"{owner.name}: its status is {status}, expected converged with {count} healthy pods"
        elif status.record not in (0, record.modify_index):
            yield f"{owner.name}: its status is about {status.record}, the record is {record.modify_index}"


def _status(dump: Dump, family: str, item: str) -> Status | None:
    entry = dump.entries.get(dump.keys.status(family, item))
    return None if entry is None else codec.decode(Status, entry.value, entry.key)


def _realities(sight: Sight) -> Iterable[str]:
    """Realities are what intents ask for, and the processes that run are those of the realities."""
    for place, (entry, intent) in sight.dump.intents.items():
        found = sight.realities.get(place)
        if found is None or (found[1].intent, found[1].manifest) != (entry.modify_index, intent.manifest):
            yield f"{place}: its reality is {found and found[1]}, its intent {entry.modify_index} {intent}"
        elif not sight.serves(place, intent.manifest):
            yield f"{place}: {found[1].phase}, {found[1].health}, {found[1].reason}"
    for place in sight.realities.keys() - sight.dump.intents.keys():
        yield f"{place}: a reality without an intent"
    alive = {each.pid: each.place for each in sight.workloads}
    said = {real.pid: place for place, (_, real) in sight.realities.items()}
    if alive != said:
        extra = {pid: place for pid, place in alive.items() if said.get(pid) != place}
        missing = {pid: place for pid, place in said.items() if alive.get(pid) != place}
        yield f"processes that no reality tells of: {extra}; realities without a process: {missing}"


def _sessions(fleet: Fleet, found: Sequence[str]) -> Iterable[str]:
    """Each farm and each agent has one session, and nobody else has any."""
    wanted = sorted(
        [*(f"farmd farm {name}" for name in fleet.farms), *(f"farmd-agent-{node}" for node in fleet.agents)]
    )
    if list(found) != wanted:
        yield f"sessions: found {found}, expected {wanted}"
