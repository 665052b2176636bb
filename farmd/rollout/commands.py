"""What people ask of rollouts: begin one, and have their say while it lasts.

A word is a compare-and-set of the record, which every transaction of the worker names: what was planned
before the word is refused (R12, R13).
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import partial
from typing import Any

import msgspec

from farmd import kinds, overview
from farmd.commands import fleet
from farmd.commands.mutation import Call, Change, Guard, Mutation, Scalar, registered
from farmd.commands.noun import Noun
from farmd.commands.specs import File
from farmd.kinds import KINDS
from farmd.rollout.checks import check
from farmd.rollout.simulate import Course, in_place, simulate
from farmd.rollout.stages import minimum
from scheduler.decide import allocation
from store import codec, manifests
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound
from store.families import RCS
from store.history import Ended, History
from store.manifests import Manifest
from store.named import NamedRecords
from store.operations import Operation
from store.policies import Policy, Stage
from store.rcs import ReplicationController
from store.rollouts import KIND, Rollout, RolloutStatus

LONGEST_NAME = 63


class RolloutSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A rollout as ``get --file`` shows it."""

    name: str
    replicas: int
    policy: Policy = Policy()


def _facts(rollout: Rollout, status: RolloutStatus | None) -> list[tuple[str, str]]:
    found = [
        ("From", f"{rollout.from_manifest[:12]} (controller {rollout.old})"),
        ("To", f"{rollout.to_manifest[:12]} (controller {rollout.new})"),
        ("Replicas", f"{rollout.replicas} in the end"),
        ("Begun by", rollout.by),
    ]
    if status is not None:
        found.insert(0, ("Phase", f"{status.phase}, stage {status.stage} of {status.stages}"))
        for title, side in (("Old", status.old), ("New", status.new)):
            told = f"{side.desired} desired, {side.placed} placed, {side.available} available"
            found.append((title, told))
        found.append(("Floor", f"{status.minimum} available"))
    return found


ROLLOUT: Noun[RolloutSpec, Rollout] = Noun(
    kind=KIND,
    document="Rollout",
    file=File(spec=RolloutSpec, record=Rollout, kept={}),
    told=lambda rollout: {"replicas": rollout.replicas},
    facts=_facts,
)


def of(call: Call) -> NamedRecords[Rollout]:
    """The live rollouts."""
    return ROLLOUT.records(call.client, call.keys)


# -- to begin -----------------------------------------------------------------------------------
async def begin(
    call: Call,
    stored: Stored[ReplicationController],
    wanted: ReplicationController,
    held: Guard,
    ensured: tuple[Operation, ...],
    *,
    retry: bool = False,
    policy: Policy | None = None,
    pod: Manifest | None = None,
) -> Mutation:
    """A rollout from a controller as it stands to what is wanted of it; the new one bears a derived name.

    ``pod`` is its manifest where that may not be stored yet.

    Raises:
        InputInvalid: the policy cannot work.
        Conflict: the controller is disabled; or the version was reverted and ``retry`` is not set.
    """
    before, ident = stored.record, call.ids.new()
    chosen = policy or wanted.rollout or Policy()
    new = msgspec.structs.replace(
        wanted,
        id=call.ids.new(),
        name=derived(before.name, ident),
        replicas_desired=0,
        created=call.clock.now(),
    )
    rollout = Rollout(
        id=ident,
        name=before.name,
        old=before.id,
        new=new.id,
        from_manifest=before.manifest,
        to_manifest=wanted.manifest,
        replicas=wanted.replicas_desired,
        started_from=before.replicas_desired,
        started_to=0,
        policy=_floored(chosen, before, wanted.replicas_desired),
        labels=before.labels,
        needs=before.needs,
        by=call.actor,
        at=call.clock.now(),
    )
    check(rollout)
    _refuse_disabled(before)
    if not retry:
        await _refuse_reverted(call, rollout)
    rcs = _controllers(call)
    return Mutation(
        _begun(rollout),
        (
            await registered(call),
            *held.operations,
            *ensured,
            *(await _own(call, rollout)),
            *rcs.create(managed(new, ident), raw=stored.raw),
            rcs.replace(stored, managed(before, ident)),
        ),
        partial(_course, call, rollout, before, new, pod),
    )


async def toward(
    call: Call, old: str, new: str, *, replicas: int | None = None, policy: Policy | None = None
) -> Mutation:
    """A rollout from one controller to another that exists, by names or ids; both stay if it is reverted.

    Raises:
        NotFound, Conflict, Locked, InputInvalid: as ``begin``.
    """
    noun: Noun[Any, ReplicationController] = kinds.load(KINDS[RCS.name].asked)
    before, held = await noun.editable(call, old, membership=True)
    after, held_too = await noun.editable(call, new, membership=True)
    ident, total = call.ids.new(), before.record.replicas_desired if replicas is None else replicas
    rollout = Rollout(
        id=ident,
        name=before.record.name,
        old=before.record.id,
        new=after.record.id,
        created_new=False,
        from_manifest=before.record.manifest,
        to_manifest=after.record.manifest,
        replicas=total,
        started_from=before.record.replicas_desired,
        started_to=after.record.replicas_desired,
        policy=_floored(policy or before.record.rollout or Policy(), before.record, total),
        labels=before.record.labels,
        needs=before.record.needs,
        by=call.actor,
        at=call.clock.now(),
    )
    check(rollout)
    if before.record.pod_id != after.record.pod_id:
        found, expected = after.record.pod_id, before.record.pod_id
        raise InputInvalid(f"rollout: found the pod id {found!r}, expected {expected!r}", field="to")
    for each in (before.record, after.record):
        _refuse_disabled(each)
    rcs = _controllers(call)
    taken = [rcs.replace(each, managed(each.record, ident)) for each in (before, after)]
    guards = (*held.operations, *held_too.operations)
    own = await _own(call, rollout)
    course = partial(_course, call, rollout, before.record, after.record)
    return Mutation(_begun(rollout), (await registered(call), *guards, *own, *taken), course)


async def _course(
    call: Call,
    rollout: Rollout,
    old: ReplicationController,
    new: ReplicationController,
    pod: Manifest | None = None,
) -> Course:
    """What it will do, as far as the nodes of this moment tell where the new pods may stand."""
    view, rows = await fleet.read(call.client, call.keys, {old.id, new.id})
    noun: Noun[Any, ReplicationController] = kinds.load(KINDS[RCS.name].asked)
    assert noun.pods is not None
    manifest = pod or await manifests.read(call.client, call.keys, new.manifest)
    places = [(row.node, row.instance) for row in rows if row.owner == old.id]
    request = noun.pods.request(new, manifest)
    unfit = set(places) - in_place(request, old.id, places, view)
    course = simulate(rollout, old, new, unfit)
    asked = msgspec.structs.replace(request, leaving=frozenset(unfit))
    return dataclasses.replace(course, short=allocation(asked, course.elsewhere, view).why)


def managed(rc: ReplicationController, ident: str) -> ReplicationController:
    """The controller as a part of a rollout; farms that do not know rollouts do not own it (R11)."""
    needs = sorted({*rc.needs, KINDS[KIND].feature})
    return msgspec.structs.replace(rc, managed_by=f"{KIND}/{ident}", needs=needs)


def derived(name: str, ident: str) -> str:
    """The name of the new controller while both exist: at most 63 characters, ending in six hex digits."""
    if len(name) + 7 <= LONGEST_NAME:
        return f"{name}-{ident[:6]}"
    digest = hashlib.blake2b(f"{name}/{ident}".encode()).hexdigest()
    return f"{name[: LONGEST_NAME - 7].rstrip('-')}-{digest[:6]}"


async def _own(call: Call, rollout: Rollout) -> tuple[Operation, ...]:
    """The rollout's own record and name.

    Raises:
        Conflict: the controller has a rollout already.
    """
    standing, index = await of(call).named(rollout.name)
    if standing is not None:
        raise Conflict(
            f"controller {rollout.name!r} has a rollout already",
            id=standing.record.id,
            hint=f"farmctl rollout status {rollout.name}; revert or abort it first",
        )
    return of(call).create(rollout, name_index=index)


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


def _floored(policy: Policy, rc: ReplicationController, total: int) -> Policy:
    """The policy with its floor, which later edits of the controller do not change."""
    if policy.minimum is not None:
        return policy
    limit = msgspec.structs.replace(rc, replicas_desired=total).unavailable_limit
    return msgspec.structs.replace(policy, minimum=max(0, total - limit))


def _controllers(call: Call) -> NamedRecords[ReplicationController]:
    return NamedRecords(call.client, call.keys, RCS.name, ReplicationController, "rc")


def _refuse_disabled(rc: ReplicationController) -> None:
    if rc.disabled:
        hint = f"farmctl rc enable {rc.name}, or update it with --now"
        raise Conflict(f"controller {rc.name!r} is disabled", id=rc.id, hint=hint)


async def _refuse_reverted(call: Call, rollout: Rollout) -> None:
    """A version that failed is not tried again without a person's word."""
    tries = [ended for ended, _ in await History(call.client, call.keys).read(rollout.name)]
    last = next((ended for ended in tries if ended.to_manifest == rollout.to_manifest), None)
    if last is not None and last.outcome == "reverted":
        raise Conflict(
            f"{rollout.name}: version {rollout.to_manifest[:12]} was reverted: {last.reason}",
            id=rollout.id,
            hint="--retry tries it again",
        )


# -- people's words -----------------------------------------------------------------------------
async def pause(call: Call, target: str) -> Mutation:
    """Stop where it is; the controllers heal themselves meanwhile."""
    return await _say(call, target, "pause", paused=True)


async def resume(call: Call, target: str) -> Mutation:
    """Go on after a pause or a halt."""
    stored = await live(call, target)
    return _said(call, stored, "resume", paused=False, resumed=stored.record.resumed + 1)


async def abort(call: Call, target: str) -> Mutation:
    """End it where it is: both controllers stay, with the pods that they have."""
    return await _say(call, target, "abort", wish="abort", paused=False)


async def revert(call: Call, target: str) -> Mutation:
    """Go back to the old version; after its end: a rollout to the version before the last one.

    Raises:
        NotFound: there is none, and nothing to go back to.
    """
    try:
        return await _say(call, target, "revert", wish="revert", paused=False)
    except NotFound:
        return await _revert_ended(call, target)


async def approve(call: Call, target: str, *, everything: bool = False) -> Mutation:
    """Let the next stage begin, or all that are left.

    Raises:
        Conflict: it asks for no word now.
    """
    stored = await live(call, target)
    row = await call.client.read(call.keys.status(KIND, stored.record.id))
    status = codec.decode(RolloutStatus, row.value, row.key) if row is not None else RolloutStatus(state="")
    asked = next(
        (word for word in status.reason.split(";") if "waits for farmctl rollout approve" in word), ""
    )
    if not asked and not everything:
        raise Conflict(f"rollout {stored.record.name!r} asks for no approval now", id=stored.record.id)
    stage = status.stages if everything else int(asked.split()[1])
    return _said(call, stored, "approve", approved=stage)


class PodRow(msgspec.Struct, frozen=True):
    """One pod of a rollout, and what its node says of it."""

    side: str
    pod: str
    state: str
    reason: str


async def explain(call: Call, target: str) -> list[PodRow]:
    """The pods of both sides, as their nodes say."""
    rollout = (await live(call, target)).record
    found: list[PodRow] = []
    for side, controller in (("old", rollout.old), ("new", rollout.new)):
        rc = (await _controllers(call).get(controller)).record
        for pod in (await overview.pods(call.client, call.keys, rc)).placed:
            told = "healthy" if pod.healthy else pod.phase
            found.append(PodRow(side, f"{pod.node}/{pod.instance}", told, pod.reason))
    return found


async def history(call: Call, name: str) -> list[Ended]:
    """The rollouts of a controller that are over, the newest first."""
    return [ended for ended, _ in await History(call.client, call.keys).read(name)]


async def _revert_ended(call: Call, target: str) -> Mutation:
    last = next((ended for ended in await history(call, target) if ended.outcome == "done"), None)
    if last is None:
        raise NotFound(f"rollout {target!r} does not exist, and history knows no version to go back to")
    noun: Noun[Any, ReplicationController] = kinds.load(KINDS[RCS.name].asked)
    stored, held = await noun.editable(call, target, membership=True, by_name=True)
    now, policy = stored.record, stored.record.rollout or Policy()
    if now.manifest == last.old.manifest:
        raise Conflict(f"controller {target!r} has version {now.manifest[:12]} already", id=now.id)
    body = await manifests.read_body(call.client, call.keys, last.old.manifest)
    wanted = msgspec.structs.replace(now, manifest=last.old.manifest)
    at_once = msgspec.structs.replace(policy, stages=[Stage(to="100%")])
    ensured = (manifests.ensure(call.keys, body),)
    return await begin(call, stored, wanted, held, ensured, retry=True, policy=at_once)


async def live(call: Call, target: str) -> Stored[Rollout]:
    """A live rollout.

    Raises:
        NotFound: there is none; says how the last one ended.
    """
    try:
        return await of(call).find(target)
    except NotFound:
        over = await history(call, target) if target and "/" not in target else []
        if not over:
            raise
        ago = call.clock.now() - over[0].ended
        text = f"rollout {target!r} ended {ago:.0f} s ago: {over[0].outcome}"
        raise NotFound(text, kind=KIND, id=target, hint=f"farmctl rollout history {target}") from None


async def _say(call: Call, target: str, word: str, **fields: Any) -> Mutation:
    return _said(call, await live(call, target), word, **fields)


def _said(call: Call, stored: Stored[Rollout], word: str, **fields: Any) -> Mutation:
    record = stored.record
    wanted = msgspec.structs.replace(record, **fields)
    changed = [name for name in fields if getattr(record, name) != getattr(wanted, name)]
    before: dict[str, Scalar] = {name: getattr(record, name) for name in changed}
    after: dict[str, Scalar] = {name: getattr(wanted, name) for name in changed}
    change = Change(
        KIND,
        record.id,
        record.name,
        f"rollout.{word}",
        before=before,
        after=after,
        destructive=word in {"abort", "revert"},
    )
    return Mutation(change, (of(call).replace(stored, wanted),) if changed else ())
