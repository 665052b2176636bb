"""A fix while a version is coming: the rollout goes on, to another version (R14).

The new controller gets the new manifest, and its pods of the version before are replaced first. The old
controller stays as it is, so the way back leads where it led before. What must never break: the person's
write compares the rollout, both controllers and the phase, so nothing that was planned before it happens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from farmd.commands import difference
from farmd.commands.mutation import Call, Change, Mutation, guard, registered
from farmd.commands.noun import Noun
from farmd.commands.parts import refuse_managed, refuse_part
from farmd.kinds import KINDS
from farmd.rollout import writes
from farmd.rollout.commands import phase, revert
from farmd.rollout.creation import begun, refuse_fixed, refuse_reverted, with_floor
from farmd.rollout.facts import of_rollout
from farmd.rollout.nodes import over_nodes
from farmd.rollout.noun import ROLLOUT
from farmd.rollout.stages import check, goals, minimum, stages
from store import manifests, operations
from store.daemonsets import KIND as DAEMON_SETS
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound, refuse
from store.operations import Operation
from store.policies import Policy, check_over_nodes
from store.rcs import KIND as MANAGES
from store.rcs import ReplicationController
from store.rollouts import KIND, NODES_SUPERSEDED, SUPERSEDED, Rollout, RolloutState


async def supersede(
    call: Call,
    noun: Noun[Any, Any],
    stored: Stored[Any],
    spec: Any,
    *,
    asked: bool,
    retry: bool = False,
    stated: Collection[str] | None = None,
) -> Mutation:
    """The rollout of a controller, toward the version of a file, or toward what it says of ``stated`` fields;
    back, if that is the old version.

    Raises:
        InputInvalid: the count or the strategy differs, which a rollout keeps; or the policy cannot work.
        Conflict: not ``asked``; the rollout ends, has switched its service, or began between two controllers
            that existed before; or the version was reverted.
    """
    before, rollouts = stored.record, ROLLOUT.records(call.client, call.keys)
    if isinstance(before, DaemonSet):
        return await _over_nodes(call, noun, stored, spec, asked=asked, retry=retry, stated=stated)
    try:
        found = await rollouts.get(before.managed_by.partition("/")[2])
        coming = await noun.records(call.client, call.keys).get(found.record.new)
    except NotFound:
        await refuse_managed(call, MANAGES, before)
        raise
    if found.record.old != before.id:
        await refuse_managed(call, MANAGES, before)
    state, unchanged = await phase(call, found.record)
    if (await difference.ensured(call, spec, before)).sha == before.manifest:
        return await _back(call, found.record, state)
    ensured = await difference.ensured(call, spec, coming.record)
    built = await noun.built(call, spec, before.id, before)
    if stated is not None:
        built = noun.file.stated(before, built, stated)
    wanted = msgspec.structs.replace(built, manifest=ensured.sha)
    if ensured.sha == found.record.to_manifest and not found.record.wish and not (state and state.back):
        return Mutation(Change(KIND, found.record.id, found.record.name, "rollout.supersede"))
    _refuse(found.record, state, asked=asked)
    await refuse_part(call, MANAGES, before, {"pod"})
    difference.refuse_other_pod(before, wanted)
    _refuse_count(found.record, spec.replicas if stated is None or "replicas" in stated else None)
    rollout = superseded(found.record, before, wanted, actor=call.actor, now=call.clock.now())
    new = successor(coming.record, wanted)
    check(rollout, new.min_healthy_time)
    if not retry:
        await refuse_reverted(call, rollout)
    _, services = await writes.join(call, rollout, new, "", spec.pod)
    return Mutation(
        _change(found.record, rollout, await _pod_lines(call, coming.record, spec)),
        (
            await registered(call),
            *ensured.writes,
            unchanged,
            await _lock(call, found.record, MANAGES, "the new controller"),
            operations.check_index(stored.key, stored.index),
            rollouts.replace(found, rollout),
            noun.records(call.client, call.keys).replace(coming, new),
            *services,
        ),
    )


async def _back(call: Call, rollout: Rollout, state: RolloutState | None) -> Mutation:
    """The way back to the old version, unless the rollout is on it."""
    if rollout.wish or (state is not None and state.back):
        return Mutation(Change(KIND, rollout.id, rollout.name, "rollout.revert"))
    return await revert(call, rollout.id)


async def _lock(call: Call, rollout: Rollout, family: str, what: str) -> Operation:
    """A check that the mutation lock of what gets the version stays free, or the rollout's (R13).

    Raises:
        Locked: another one holds it.
    """
    entry = await call.client.read(call.keys.mutation_lock(family, rollout.new))
    if entry is not None and of_rollout(entry, rollout.id):
        return operations.check_index(entry.key, entry.modify_index)
    held = await guard(call, family, rollout.new, f"{what} of rollout {rollout.name!r}")
    return held.operations[0]


# -- pure ---------------------------------------------------------------------------------------
def superseded(
    rollout: Rollout, old: ReplicationController, wanted: ReplicationController, *, actor: str, now: float
) -> Rollout:
    """The rollout toward another version. Its stages begin again, and its deadline; a word of before that was
    about the other version counts no more, but a pause holds."""
    policy = rollout.policy
    if wanted.rollout != old.rollout:
        policy = begun(with_floor(wanted.rollout or Policy(), old, rollout.replicas))
    following = _toward(rollout, wanted.manifest, policy, actor=actor, now=now)
    first = goals(following, minimum(following))[0]  # who asks for it by name approves the first stage, too
    return msgspec.structs.replace(following, approved=1) if first.approve else following


def _toward(rollout: Rollout, manifest: str, policy: Policy, *, actor: str, now: float) -> Rollout:
    """The rollout toward another version by a policy, of which only the strategy must stay."""
    if policy.strategy != rollout.policy.strategy:
        refuse("rollout.strategy", policy.strategy, f"{rollout.policy.strategy} until the rollout is over")
    return msgspec.structs.replace(
        rollout,
        to_manifest=manifest,
        superseded=[*rollout.superseded, rollout.to_manifest],
        policy=policy,
        wish="",
        approved=0,
        needs=sorted({*rollout.needs, SUPERSEDED}),
        by=actor,
        at=now,
    )


def successor(coming: ReplicationController, wanted: ReplicationController) -> ReplicationController:
    """The new controller as its file says, with the fields that the rollout has set."""
    kept = ("id", "name", "replicas_desired", "created", "part_of", "open", "managed_by", "taken", "hands")
    return msgspec.structs.replace(
        wanted,
        **{name: getattr(coming, name) for name in (*kept, "numbered", "reverted")},
        needs=sorted({*wanted.needs, *coming.needs, SUPERSEDED}),
    )


def _refuse(rollout: Rollout, state: RolloutState | None, *, asked: bool) -> None:
    name, version = rollout.name, rollout.to_manifest[:12]
    if rollout.wish == "abort":
        raise Conflict(f"rollout {name!r} is ending", id=rollout.id, hint="repeat the command afterwards")
    if not rollout.created_new or (state is not None and state.switched):
        why = "has switched its service" if rollout.created_new else "joins two controllers of its own file"
        text = f"rollout {name!r} {why}, so no other version can take its place"
        raise Conflict(text, id=rollout.id, hint=f"farmctl rollout revert {name} first")
    if not asked:
        raise Conflict(
            f"{KINDS[rollout.of].one} {name!r} has a rollout already, to version {version}",
            id=rollout.id,
            hint=f"--supersede puts this version in its place; farmctl rollout status {name} shows it",
        )


def _refuse_count(rollout: Rollout, replicas: int | None) -> None:
    if replicas not in (None, rollout.replicas):
        raise InputInvalid(
            f"replicas: found {replicas}, expected {rollout.replicas} while the rollout is under way",
            field="replicas",
            hint=f"farmctl rollout scale {rollout.name} {replicas}",
        )


def _change(before: Rollout, after: Rollout, lines: tuple[str, ...]) -> Change:
    paused = (f"paused; farmctl rollout resume {after.name} continues it",) if after.paused else ()
    floor = {} if over_nodes(after) else {"minimum": minimum(after)}
    least = "min_health" if over_nodes(after) else f"at least {minimum(after)}"
    return Change(
        KIND,
        after.id,
        after.name,
        "rollout.supersede",
        before={"pod": before.to_manifest[:12]},
        after={"pod": after.to_manifest[:12], **floor},
        details=(
            *lines,
            f"pods of {before.to_manifest[:12]} are replaced first: one, and once it is available the others",
            f"then the stages begin again; {least} pods of all versions stay available",
            f"farmctl rollout revert {after.name} goes back to {after.from_manifest[:12]}",
            *paused,
        ),
        destructive=True,
        manifest=after.to_manifest,
    )


async def _pod_lines(call: Call, coming: ReplicationController | DaemonSet, spec: Any) -> tuple[str, ...]:
    try:
        before = await manifests.read(call.client, call.keys, coming.manifest)
    except NotFound:
        before = None
    return tuple(difference.manifest_lines(before, spec.pod))


async def _over_nodes(
    call: Call,
    noun: Noun[Any, Any],
    stored: Stored[DaemonSet],
    spec: Any,
    *,
    asked: bool,
    retry: bool,
    stated: Collection[str] | None,
) -> Mutation:
    """The rollout of a daemon set toward another version.

    Its worker replaces no pod until the rollout's farm has taken the version in.

    Raises:
        As ``supersede``.
    """
    before, rollouts = stored.record, ROLLOUT.records(call.client, call.keys)
    try:
        found = await rollouts.get(before.managed_by.partition("/")[2])
    except NotFound:
        await refuse_managed(call, DAEMON_SETS, before)
        raise
    state, unchanged = await phase(call, found.record)
    ensured = await difference.ensured(call, spec, before)
    if ensured.sha == before.manifest:
        return await _back(call, found.record, state)
    if ensured.sha == before.coming and not found.record.wish and not (state and state.back):
        return Mutation(Change(KIND, found.record.id, found.record.name, "rollout.supersede"))
    _refuse(found.record, state, asked=asked)
    await refuse_part(call, DAEMON_SETS, before, {"pod"})
    built = await noun.built(call, spec, before.id, before)
    if stated is not None:
        built = noun.file.stated(before, built, stated)
    difference.refuse_other_pod(before, msgspec.structs.replace(built, manifest=ensured.sha))
    if before.coming_beside:
        refuse_fixed(spec.pod)
    rollout = superseded_over_nodes(
        found.record, before, built, ensured.sha, actor=call.actor, now=call.clock.now()
    )
    if not retry:
        await refuse_reverted(call, rollout)
    wanted = msgspec.structs.replace(
        built,
        manifest=before.manifest,
        coming=ensured.sha,
        coming_held=True,
        superseded=rollout.superseded,
        needs=sorted({*built.needs, *before.needs, *rollout.needs}),
    )
    coming = msgspec.structs.replace(before, manifest=before.coming)
    return Mutation(
        _change(found.record, rollout, await _pod_lines(call, coming, spec)),
        (
            await registered(call),
            *ensured.writes,
            unchanged,
            await _lock(call, rollout, DAEMON_SETS, "the daemon set"),
            rollouts.replace(found, rollout),
            noun.records(call.client, call.keys).replace(stored, wanted),
        ),
    )


def superseded_over_nodes(
    rollout: Rollout, before: DaemonSet, wanted: DaemonSet, manifest: str, *, actor: str, now: float
) -> Rollout:
    """The rollout of a daemon set toward another version, as ``superseded``."""
    policy = rollout.policy
    if wanted.rollout != before.rollout:
        policy = begun(wanted.rollout or Policy())
        check_over_nodes(policy, "rollout")
    following = _toward(rollout, manifest, policy, actor=actor, now=now)
    return msgspec.structs.replace(
        following,
        approved=int(stages(policy)[0].approve),
        needs=sorted({*rollout.needs, NODES_SUPERSEDED}),
    )
