"""Beginning a rollout: the rollout, the second controller and what keeps people out, in one transaction."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from farmd import kinds
from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Call, Change, Guard, Mutation, registered
from farmd.commands.parts import refuse_part
from farmd.commands.specs import check_count
from farmd.rollout import fitting, nodes, writes
from farmd.rollout.noun import ROLLOUT, controller
from farmd.rollout.simulate import Course, simulate
from farmd.rollout.stages import check, minimum, stages
from scheduler.decide import allocation, eligibility
from store import manifests
from store.daemonsets import KIND as DAEMON_SETS
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.errors import Conflict, InputInvalid, refuse
from store.manifests import Manifest
from store.operations import Operation
from store.policies import Policy, check_over_nodes
from store.rcs import KIND as MANAGES
from store.rcs import NUMBERED, ReplicationController
from store.rollouts import KIND, MANAGED, NODES, NODES_BESIDE, STAGED, History, Rollout
from store.signatures import stem

HEALTH_DEADLINE_SECONDS = 300.0


async def begin(
    call: Call,
    stored: Stored[Any],
    wanted: ReplicationController | DaemonSet,
    held: Guard,
    ensured: tuple[Operation, ...],
    *,
    retry: bool = False,
    policy: Policy | None = None,
    pod: Manifest | None = None,
    service: str = "",
) -> Mutation:
    """Begin a rollout from a controller to its wanted version. The new controller gets a derived name.

    ``pod`` is its manifest where that may not be stored yet, ``service`` as in ``toward``.

    Raises:
        InputInvalid: the policy cannot work.
        Conflict: the controller is disabled; or the version was reverted and ``retry`` is not set.
    """
    if isinstance(wanted, DaemonSet):
        return await _begin_over_nodes(
            call, stored, wanted, held, ensured, retry=retry, policy=policy, pod=pod
        )
    before, ident = stored.record, call.ids.new()
    await refuse_part(call, MANAGES, before, {"pod"})
    chosen = policy or wanted.rollout or Policy()
    new = msgspec.structs.replace(
        wanted,
        id=call.ids.new(),
        name=derived(before.name, ident),
        replicas_desired=0,
        reverted=None,
        created=call.clock.now(),
        part_of="",  # the end hands on what the old one is a part of, with the name
        open=[],
    )
    if call.part_of:
        before = msgspec.structs.replace(before, part_of=call.part_of, open=list(call.open))
    if chosen.beside:
        new = named(new, pod or await manifests.read(call.client, call.keys, new.manifest))
    rollout = _rollout(call, ident, before, new, wanted.replicas_desired, chosen)
    rollout, services = await _served(call, rollout, new, service, pod)
    check_count(rollout.replicas, "replicas", lowest=1)
    check(rollout, new.min_healthy_time)
    _refuse_disabled(before)
    if not retry:
        await refuse_reverted(call, rollout)
    rcs = controller().records(call.client, call.keys)
    return Mutation(
        _begun(rollout),
        (
            await registered(call),
            *held.operations,
            *ensured,
            *(await own(call, rollout)),
            *rcs.create(managed(new, ident), raw=stored.raw),
            rcs.replace(stored, managed(before, ident)),
            *services,
        ),
        partial(_course, call, rollout, before, new, pod),
    )


async def _begin_over_nodes(
    call: Call,
    stored: Stored[DaemonSet],
    wanted: DaemonSet,
    held: Guard,
    ensured: tuple[Operation, ...],
    *,
    retry: bool = False,
    policy: Policy | None = None,
    pod: Manifest | None = None,
) -> Mutation:
    """Begin a rollout from a daemon set to its wanted version.

    Raises:
        InputInvalid: the policy cannot work over nodes.
        Conflict: the daemon set is disabled or has a rollout; or the version was reverted, without ``retry``.
    """
    before, chosen = stored.record, policy or wanted.rollout or Policy()
    await refuse_part(call, DAEMON_SETS, before, {"pod"})
    if before.disabled:
        hint = f"farmctl daemonset enable {before.name}, or update it with --now"
        raise Conflict(f"daemonset {before.name!r} is disabled", id=before.id, hint=hint)
    check_over_nodes(chosen, "rollout")
    needs = {*wanted.needs, NODES}
    if chosen.beside:
        refuse_fixed(pod or await manifests.read(call.client, call.keys, wanted.manifest))
        needs |= {NODES_BESIDE, NUMBERED}
    rollout = Rollout(
        id=call.ids.new(),
        name=before.name,
        of=DAEMON_SETS,
        old=before.id,
        new=before.id,
        from_manifest=before.manifest,
        to_manifest=wanted.manifest,
        replicas=1,
        started_from=1,
        started_to=0,
        policy=begun(chosen),
        labels=before.labels,
        needs=sorted(needs),
        by=call.actor,
        at=call.clock.now(),
    )
    if not retry:
        await refuse_reverted(call, rollout)
    kept = msgspec.structs.replace(
        wanted,
        manifest=before.manifest,
        coming=wanted.manifest,
        coming_to=0,
        managed_by=f"{KIND}/{rollout.id}",
        needs=sorted(needs),
        coming_beside=chosen.beside,
        numbered=wanted.numbered or chosen.beside,
        **({"part_of": call.part_of, "open": list(call.open)} if call.part_of else {}),
    )
    change = Change(
        KIND,
        rollout.id,
        rollout.name,
        "rollout.create",
        before={"pod": rollout.from_manifest[:12]},
        after={"pod": rollout.to_manifest[:12], "daemonset": before.name},
        manifest=rollout.to_manifest,
        details=tuple(_staged(rollout.policy)),
    )
    records = nodes.daemon_sets().records(call.client, call.keys)
    operations_ = (
        await registered(call),
        *held.operations,
        *ensured,
        *(await own(call, rollout)),
        records.replace(stored, kept),
    )
    return Mutation(change, operations_)


def refuse_fixed(pod: Manifest) -> None:
    """Refuse a pod that cannot start beside another one, because it has a port of its own choice.

    Raises:
        InputInvalid: naming the port.
    """
    for name, port in pod.ports.items():
        if port.port:
            found = f"{port.port} with rollout.strategy availability"
            refuse(f"pod.ports.{name}.port", found, "0, so that both versions can run on a node, or rolling")


def _staged(policy: Policy) -> Iterator[str]:
    """One line for people per stage of a rollout over nodes."""
    if policy.beside:
        yield "each new pod starts beside the one that it replaces, which leaves once it is available"
    if policy.ratio is not None:
        yield f"{policy.ratio}% of the nodes at a time"
        return
    wanted = stages(policy)
    for number, stage in enumerate(wanted, 1):
        rest = f"  then rests {stage.bake:g} s" if stage.bake else ""
        word = "  after approval" if stage.approve else ""
        yield f"stage {number} of {len(wanted)}  new on {stage.to} of the nodes{rest}{word}"


async def toward(
    call: Call,
    old: str,
    new: str,
    *,
    replicas: int | None = None,
    policy: Policy | None = None,
    service: str = "",
    name: str = "",
) -> Mutation:
    """A rollout from one controller to another that exists, by names or ids; both stay if it is reverted.

    ``service`` is the name of the service that goes with it; empty: one that names the old controller.
    ``name`` is the rollout's, empty: that of the old controller.

    Raises:
        NotFound, Conflict, Locked, InputInvalid: as ``begin``.
    """
    rcs = controller()
    before, held = await rcs.editable(call, old, membership=True, fields={"pod", "replicas"})
    after, held_too = await rcs.editable(call, new, membership=True, fields={"pod", "replicas"})
    ident, total = call.ids.new(), before.record.replicas_desired if replicas is None else replicas
    chosen = policy or before.record.rollout or Policy()
    if chosen.beside:
        pod = await manifests.read(call.client, call.keys, after.record.manifest)
        after = msgspec.structs.replace(after, record=named(after.record, pod))
    rollout = _rollout(call, ident, before.record, after.record, total, chosen, created_new=False)
    rollout = msgspec.structs.replace(rollout, name=name or rollout.name)
    rollout, services = await _served(call, rollout, after.record, service)
    check_count(total, "replicas", lowest=1)
    check(rollout, after.record.min_healthy_time)
    if total < rollout.started_to:
        has = f"{rollout.started_to}, which {after.record.name} has already"
        raise InputInvalid(f"replicas: found {total}, expected at least {has}", field="replicas")
    if before.record.pod_id != after.record.pod_id:
        found, expected = after.record.pod_id, before.record.pod_id
        raise InputInvalid(f"rollout: found the pod id {found!r}, expected {expected!r}", field="to")
    for each in (before.record, after.record):
        _refuse_disabled(each)
    records = rcs.records(call.client, call.keys)
    taken = [records.replace(each, managed(each.record, ident)) for each in (before, after)]
    guards = (*held.operations, *held_too.operations, *services)
    course = partial(_course, call, rollout, before.record, after.record, None)
    return Mutation(
        _begun(rollout), (await registered(call), *guards, *await own(call, rollout), *taken), course
    )


def _rollout(
    call: Call,
    ident: str,
    old: ReplicationController,
    new: ReplicationController,
    total: int,
    policy: Policy,
    *,
    created_new: bool = True,
) -> Rollout:
    return Rollout(
        id=ident,
        name=old.name,
        old=old.id,
        new=new.id,
        created_new=created_new,
        from_manifest=old.manifest,
        to_manifest=new.manifest,
        replicas=total,
        started_from=old.replicas_desired,
        started_to=new.replicas_desired,
        policy=begun(with_floor(policy, old, total)),
        labels=old.labels,
        needs=_needs((old, new), policy),
        by=call.actor,
        at=call.clock.now(),
    )


async def _served(
    call: Call, rollout: Rollout, new: ReplicationController, name: str, pod: Manifest | None = None
) -> tuple[Rollout, tuple[Operation, ...]]:
    """The rollout with its service, and what it writes of services at its beginning.

    A farm that knows no services would leave them as they are, so it must not carry it out (R11).
    """
    service, operations = await writes.join(call, rollout, new, name, pod)
    needs = sorted({*rollout.needs, STAGED}) if operations else rollout.needs
    return msgspec.structs.replace(rollout, service=service, needs=needs), operations


async def _course(
    call: Call,
    rollout: Rollout,
    old: ReplicationController,
    new: ReplicationController,
    pod: Manifest | None,
    fleet: Fleet,
) -> Course:
    """What the rollout will do, forecast from the nodes that can run the new pods now."""
    view = fleet.view({old.id, new.id})
    pods = controller().pods
    assert pods is not None
    manifest = pod or await manifests.read(call.client, call.keys, new.manifest)
    places = [(row.node, row.instance) for row in fleet.pods if row.owner == old.id]
    request = pods.request(new, manifest)
    asked = fitting.question(request, old.id, places)
    unfit = set(places) - fitting.places(asked, eligibility(asked, view), view)
    if rollout.policy.strategy != "rolling":
        unfit = set()  # no pod takes the place of another
    course = simulate(rollout, old, new, unfit)
    elsewhere = msgspec.structs.replace(request, leaving=frozenset(unfit))
    return dataclasses.replace(course, short=allocation(elsewhere, course.elsewhere, view).why)


def _needs(rcs: Iterable[ReplicationController], policy: Policy) -> list[str]:
    """What a farm must know to carry the rollout out; else it would do it in another way (R11)."""
    known = {need for rc in rcs for need in rc.needs}
    plain = policy.strategy == "rolling" and policy.ratio is None
    return sorted(known if plain else known | {STAGED})


def named(rc: ReplicationController, pod: Manifest) -> ReplicationController:
    """The controller with numbered instances, so that pods of both versions may stand on one node.

    A pod with a fixed port needs a node to itself: there its name alone is the instance.
    """
    numbered = not any(port.port for port in pod.ports.values())
    needs = {need for need in rc.needs if need != NUMBERED} | ({NUMBERED} if numbered else set())
    return msgspec.structs.replace(rc, numbered=numbered, needs=sorted(needs))


def managed(rc: ReplicationController, ident: str) -> ReplicationController:
    """The controller as a part of a rollout; farms that do not know rollouts do not own it (R11)."""
    needs = sorted({*rc.needs, MANAGED})
    return msgspec.structs.replace(rc, managed_by=f"{KIND}/{ident}", needs=needs)


def derived(name: str, ident: str) -> str:
    """The name of the new controller while both exist: at most 63 characters, ending in six hex digits."""
    begin = stem(name)
    if begin == name:
        return f"{name}-{ident[:6]}"
    digest = hashlib.blake2b(f"{name}/{ident}".encode()).hexdigest()
    return f"{begin}-{digest[:6]}"


async def own(call: Call, rollout: Rollout) -> tuple[Operation, ...]:
    """The rollout's own record and name.

    Raises:
        Conflict: the controller has a rollout already.
    """
    standing, index = await ROLLOUT.records(call.client, call.keys).named(rollout.name)
    if standing is not None:
        raise Conflict(
            f"{kinds.title(standing.record.of, rollout.name)} has a rollout already",
            id=standing.record.id,
            hint=f"farmctl rollout status {rollout.name}; revert or abort it first",
        )
    return ROLLOUT.records(call.client, call.keys).create(rollout, name_index=index)


def _begun(rollout: Rollout) -> Change:
    scaled = rollout.replicas != rollout.started_from
    return Change(
        KIND,
        rollout.id,
        rollout.name,
        "rollout.create",
        before={"pod": rollout.from_manifest[:12], **({"replicas": rollout.started_from} if scaled else {})},
        after={"pod": rollout.to_manifest[:12], "replicas": rollout.replicas, "minimum": minimum(rollout)},
        manifest=rollout.to_manifest,
    )


def with_floor(policy: Policy, rc: ReplicationController, total: int) -> Policy:
    """The policy with its floor, which later edits of the controller do not change."""
    if policy.minimum is not None or policy.strategy != "rolling":
        return policy
    limit = msgspec.structs.replace(rc, replicas_desired=total).unavailable_limit
    return msgspec.structs.replace(policy, minimum=max(0, total - limit))


def begun(policy: Policy) -> Policy:
    """The policy with the deadline of a new rollout; those that began under an earlier version have none."""
    if policy.health_deadline is not None:
        return policy
    return msgspec.structs.replace(
        policy, health_deadline=min(HEALTH_DEADLINE_SECONDS, policy.progress_deadline)
    )


def _refuse_disabled(rc: ReplicationController) -> None:
    if rc.disabled:
        hint = f"farmctl rc enable {rc.name}, or update it with --now"
        raise Conflict(f"controller {rc.name!r} is disabled", id=rc.id, hint=hint)


async def refuse_reverted(call: Call, rollout: Rollout) -> None:
    """Refuse a version that failed before, unless a person asks to retry it."""
    tries = [
        each.record for each in (await History(call.client, call.keys, rollout.of).read(rollout.name)).items
    ]
    last = next((ended for ended in tries if ended.to_manifest == rollout.to_manifest), None)
    if last is not None and last.outcome == "reverted":
        raise Conflict(
            f"{rollout.name}: version {rollout.to_manifest[:12]} was reverted: {last.reason}",
            id=rollout.id,
            hint="--retry tries it again",
        )
