"""The writes of a deployment: its services, and turns of their owners: take, hand back, release, remove."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from farmd.commands.mutation import Call, Guard, Scalar, holder_told
from farmd.commands.parts import pods_left
from farmd.commands.specs import changed
from farmd.deploy import goals, owners
from farmd.deploy.facts import Facts, ServiceFacts, turned
from farmd.deploy.noun import owner_noun
from farmd.farm.writer import Write
from farmd.kinds import title
from farmd.runtime.errors import FarmdError
from farmd.work import hands
from farmd.work.context import Context
from store import codec, operations
from store.deployments import KIND, Deployment, DeploymentState, Goal, GoalState
from store.entry import Stored
from store.families import FAMILIES
from store.locks import Holder
from store.manifests import Manifest
from store.named import NamedRecords, decode_named
from store.operations import Operation
from store.services import Revision, Service, ServiceStore, Version, same
from store.work import Work

# The records of services and their owners as they stand now, and what takes their place.


def of_owner(context: Context, sight: ServiceFacts) -> NamedRecords[Any]:
    """The records of the family that its owner is of."""
    return owner_noun(sight.family).records(context.client, context.keys)


async def owner(context: Context, sight: ServiceFacts) -> Stored[Any] | None:
    """The owner as it is now, with the fields that this version does not know."""
    return await standing(context, sight.family, sight.owner_id)


async def standing(context: Context, family: str, ident: str) -> Stored[Any] | None:
    """A record as it is now; None: there is none."""
    entry = await context.client.read(context.keys.record(family, ident))
    record = FAMILIES[family].record
    return None if entry is None or record is None else decode_named(record, context.keys, entry)


def rewritten(context: Context, sight: ServiceFacts, standing: Stored[Any], **fields: Any) -> Write:
    """An owner with other fields, in place of the very version that was read."""
    tree = context.caches.tree(FAMILIES[sight.family])
    return Write.over(standing.key, changed(standing.record, **fields), standing, tree)


def service_records(context: Context) -> ServiceStore:
    """The services, as the store has them."""
    return ServiceStore(context.client, context.keys)


def port_of(service: Service, manifest: Manifest) -> str:
    """The port under which it is found: the one that it has, else the first of its pods."""
    if service.port in manifest.ports:
        return service.port
    return next(iter(manifest.ports), "")


# The transactions of a deployment that change more than pods: take, turn back, release, remove, end.
#
# What must never break: an owner is taken and handed back together with the state that says so, and a
# service names its owner, its version and the deployment that holds it in the same transaction (R12, R14).

KEPT_REVISIONS = 10

Writes = list[Write | Operation]


class TurnRefused(FarmdError):
    """A service cannot change hands now; the message says why."""

    code = "turn_refused"


class Released(NamedTuple):
    """The writes of a release; ``services``: the names of others that served by the owner, which goes."""

    writes: Writes
    services: Scalar = ""


# -- the state ----------------------------------------------------------------------------------
def noted(context: Context, item: str, **fields: Any) -> Write:
    """The deployment's state with other fields, over the very version that this farm knows."""
    key = context.keys.work(KIND, item)
    standing = context.caches.work.get(key)
    work = standing.record if standing is not None else Work()
    state = replace(work.deployment or DeploymentState(), **fields)
    return Write.over(key, replace(work, deployment=state), standing, context.caches.work)


def noted_goal(context: Context, item: str, service: str, state: GoalState, **fields: Any) -> Write:
    """The state of one goal, and other fields; the other goals stay as they are."""
    standing = context.caches.work.get(context.keys.work(KIND, item))
    known = (standing.record.deployment if standing is not None else None) or DeploymentState()
    return noted(context, item, goals=known.goals | {service: state}, **fields)


# -- taking -------------------------------------------------------------------------------------
async def take(context: Context, reading: Facts, sight: ServiceFacts) -> Writes:
    """Take the owner of a service, or make it.

    Raises:
        TurnRefused: something stands in the way.
    """
    record, goal = reading.stored.record, sight.said
    service = await service_records(context).get(goal.service)
    joining = await _joining(context, record.id, service.record)
    if joining is None:
        raise TurnRefused(f"service {goal.name} is held by deployment {service.record.deployment or 'none'}")
    standing = await owner(context, sight)
    serving = sum(pod.healthy for pod in sight.pods.values())
    ended = bool(sight.pods) and all(pod.completed or pod.over for pod in sight.pods.values())
    state = GoalState(phase="taken", started=serving, completed=ended, since=context.clock.now())
    writes: Writes = [noted_goal(context, record.id, goal.service, state), *joining]
    joined = goals.joined(service.record, record, goal, sight.manifest, context.clock.now())
    if sight.version is None or sight.manifest is None:
        if joining:
            writes.append(service_records(context).replace(service, joined))
        return writes if standing is None else await _taken(context, reading, sight, standing, {}, writes)
    fields = owners.wishes(goal, sight.version, sight.manifest, record.project)
    named = replace(joined, active=[goal.owner], port=port_of(service.record, sight.manifest))
    writes.append(service_records(context).replace(service, named))
    if standing is not None:
        return await _taken(context, reading, sight, standing, fields, writes)
    new = owners.made(goal, fields, record.labels, context.clock.now())
    return writes + await _made(context, sight, replace(new, **owners.taken(new, record.id)))


async def _joining(context: Context, ident: str, service: Service) -> list[Operation] | None:
    """What proves that a service is a deployment's: nothing once it has joined; before that, the records of
    the deployments from which it was taken over. None: it is another one's.
    """
    holder, proof = service.deployment, list[Operation]()
    while holder != ident:
        key = context.keys.record(KIND, holder)
        entry = await context.client.read(key) if holder else None
        if entry is None:
            return None
        proof.append(operations.check_index(key, entry.modify_index))
        known = codec.decode(Deployment, entry.value, entry.key).goals
        holder = next((goal.superseded for goal in known if goal.service == service.id), "")
    return proof


async def _taken(
    context: Context, reading: Facts, sight: ServiceFacts, standing: Stored[Any], fields: dict[str, Any],
    writes: Writes,
) -> Writes:  # fmt: skip
    record, found = reading.stored.record, standing.record
    if found.managed_by and not found.managed_by.startswith(f"{KIND}/"):
        # Whoever holds the service may take its owner from any other deployment.
        raise TurnRefused(f"{sight.said.owner} is managed by {found.managed_by}")
    lock = context.keys.mutation_lock(sight.family, found.id)
    if (entry := await context.client.read(lock)) is not None:
        raise TurnRefused(f"{sight.said.owner} is locked by {holder_told(Holder.parse(entry.value))}")
    needs = list(dict.fromkeys([*found.needs, *fields.get("needs", owners.NEEDS)]))
    fields = {**fields, **owners.taken(found, record.id), "needs": needs}
    return [*writes, operations.check_not_exists(lock), rewritten(context, sight, standing, **fields)]


async def _made(context: Context, sight: ServiceFacts, record: Any) -> Writes:
    """A new owner with its name; that of an owner that is gone is taken over."""
    named, index = await of_owner(context, sight).named(record.name)
    if named is not None:
        text = f"{title(sight.family, record.name)} exists ({named.record.id}), and is not of this service"
        raise TurnRefused(text)
    key = context.keys.record(sight.family, record.id)
    tree = context.caches.tree(FAMILIES[sight.family])
    _, name = of_owner(context, sight).create(record, name_index=index)
    return [Write.over(key, record, None, tree), name]


def skip(context: Context, reading: Facts, sight: ServiceFacts, why: str) -> Writes:
    """Leave a service that was never taken as it is."""
    state = GoalState(phase="released", back=True, failure=why, since=context.clock.now())
    return [noted_goal(context, reading.stored.record.id, sight.said.service, state)]


# -- turning back -------------------------------------------------------------------------------
async def back(context: Context, reading: Facts, sight: ServiceFacts, why: str, failed: str = "") -> Writes:
    """Let a service go back to what it was, for good, because of the pod at ``failed`` if one did; a halt on
    the way forward is over.
    """
    assert sight.state is not None
    item, goal = reading.stored.record.id, sight.said
    state = replace(sight.state, back=True, failure=why, failed=failed, since=context.clock.now())
    writes: Writes = [noted_goal(context, item, goal.service, state, halted="", failed="")]
    standing, version = await owner(context, sight), turned(goal, state)
    if standing is None:
        return writes
    fields = await _wishes(context, reading, goal, version)
    return [*writes, rewritten(context, sight, standing, **fields)]


async def take_back(context: Context, reading: Facts, sight: ServiceFacts, why: str) -> Writes:
    """Take a service again that was released already, for its way back; one that others changed since stays
    as it is.

    Raises:
        TurnRefused: something stands in the way.
    """
    record, goal = reading.stored.record, sight.said
    assert sight.state is not None
    service = await service_records(context).get(goal.service)
    state = replace(sight.state, back=True, failure=why, since=context.clock.now())
    if service.record.deployment or not same(service.record.version, goal.wanted):
        return [noted_goal(context, record.id, goal.service, replace(state, failure="it was changed since"))]
    joined = replace(service.record, deployment=record.id)
    taken = replace(state, phase="taken", started=sum(pod.healthy for pod in sight.pods.values()))
    version, standing = turned(goal, taken), await owner(context, sight)
    if standing is None:
        raise TurnRefused(f"{goal.owner} is gone")
    fields = await _wishes(context, reading, goal, version)
    writes: Writes = [
        noted_goal(context, record.id, goal.service, taken, halted="", failed=""),
        service_records(context).replace(service, joined),
    ]
    return await _taken(context, reading, sight, standing, fields, writes)


async def _wishes(context: Context, reading: Facts, goal: Goal, version: Version | None) -> dict[str, Any]:
    """What the owner of a service's pods becomes for a version; for none it stays as it is."""
    if version is None:
        return {}
    manifest = await context.manifests.get(version.manifest)
    return owners.wishes(goal, version, manifest, reading.stored.record.project)


# -- release ------------------------------------------------------------------------------------
async def release(context: Context, reading: Facts, sight: ServiceFacts) -> Released:
    """Hand the owner back and record the service's new version; or remove the service.

    Raises:
        TurnRefused: something stands in the way.
    """
    assert sight.state is not None
    record, goal = reading.stored.record, sight.said
    service, standing = await service_records(context).get(goal.service), await owner(context, sight)
    state = replace(sight.state, phase="released", since=context.clock.now())
    writes: Writes = [noted_goal(context, record.id, goal.service, state)]
    if sight.version is None:
        return await _removed(context, sight, service, standing, writes)
    if standing is None:
        raise TurnRefused(f"{goal.owner} is gone")
    writes.append(rewritten(context, sight, standing, **hands.freed(standing.record)))
    after = revised(service.record, record, goal.wanted, sight, context.clock.now())
    return Released([*writes, service_records(context).replace(service, after)])


def revised(
    service: Service, record: Deployment, wanted: Version | None, sight: ServiceFacts, now: float
) -> Service:
    """The service after its release; a version that failed is kept in its history alone."""
    after = _revised(service, record, wanted, sight, now)
    before = service.version.catalog if service.version is not None else None
    said = after.version.catalog if after.version is not None else None
    # What people say by a command stays as long as no file says anything, or takes back what it said.
    return after if said == before else replace(after, catalog=said, catalog_off=False)


def _revised(
    service: Service, record: Deployment, wanted: Version | None, sight: ServiceFacts, now: float
) -> Service:
    assert sight.state is not None
    number = max([service.revision, *(each.number for each in service.history)]) + 1
    after = replace(service, deployment="", active=[sight.said.owner])
    if sight.manifest is not None:
        after = replace(after, port=port_of(service, sight.manifest))
    if wanted is None:
        return after
    failed = sight.state.back
    entry = Revision(
        number=number,
        version=wanted,
        deployment=record.id,
        result="reverted" if failed else "done",
        reason=sight.state.failure or record.reason,
        at=now,
        by=record.by,
    )
    after = replace(after, history=[entry, *service.history][:KEPT_REVISIONS])
    if not failed:
        return replace(after, version=wanted, revision=number)
    if same(service.version, sight.version):
        return after
    known = [each.number for each in service.history if same(each.version, sight.version)]
    return replace(after, version=sight.version, revision=max(known, default=service.revision))


async def _removed(
    context: Context,
    sight: ServiceFacts,
    service: Stored[Service],
    standing: Stored[Any] | None,
    writes: Writes,
) -> Released:
    """Take the service and its owner away, once no node runs anything of it (R15)."""
    call = Call(context.client, context.keys, context.clock, context.ids, context.actor, "its service goes")
    writes += service_records(context).delete(service)
    if standing is None:
        return Released(writes)
    await context.caches.reality.barrier()
    if running := context.fleet.processes.told(sight.owner_id):
        raise TurnRefused(running)
    if await pods_left(call, sight.owner_id):
        await context.caches.pods.barrier([context.keys.pods(sight.owner_id)])
        raise TurnRefused("a pod of it is left")
    gone = await owner_noun(sight.family).removal(call, standing, Guard(()))
    return Released([*writes, *gone.operations], gone.change.before.get("services", ""))


# -- the end ------------------------------------------------------------------------------------
async def handed_over(context: Context, deployment: str, goal: Goal) -> Writes:
    """Let a service join the deployment that took it over, unless it did; one that is gone takes nothing."""
    services, heir = service_records(context), context.keys.record(KIND, goal.superseded)
    service = await standing(context, services.family, goal.service)
    if service is None or (joining := await _joining(context, deployment, service.record)) is None:
        return []
    entry = await context.client.read(heir)
    if entry is None:
        return await freed(context, deployment, goal)
    joined = services.replace(service, replace(service.record, deployment=goal.superseded))
    return [*joining, operations.check_index(heir, entry.modify_index), joined]


async def freed(context: Context, deployment: str, goal: Goal) -> Writes:
    """Release a service that was never taken. If it was created for this deployment, it is deleted.

    Its owner goes back to its own worker where a deployment had taken it whose goal this one superseded.
    """
    services = service_records(context)
    service = await standing(context, services.family, goal.service)
    if service is None or (joining := await _joining(context, deployment, service.record)) is None:
        return []
    family, _, ident = goal.owner.partition("/")
    found = await standing(context, family, ident)
    if found is None and service.record.version is None:
        return list(services.delete(service))
    writes: Writes = [*joining, services.replace(service, replace(service.record, deployment=""))]
    if found is not None and found.record.managed_by.startswith(f"{KIND}/"):
        record = replace(found.record, **hands.freed(found.record))
        writes.append(Write.over(found.key, record, found, context.caches.tree(FAMILIES[family])))
    return writes
