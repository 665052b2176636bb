"""Who holds a service while a deployment changes it, and who may take it over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from farmd.commands.mutation import Call
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.reader import Holding, Scene
from store.errors import Conflict, InputInvalid, Locked
from store.operations import Operation
from store.times import rfc3339


def refuse_foreign(scene: Scene, names: Collection[str], project: str) -> None:
    """Refuse services of others: of another project, or that people made for owners of their own.

    Raises:
        Conflict: naming the first of them.
    """
    for name in sorted(names):
        stored = scene.records.get(name)
        if stored is None or (stored.record.project == project and stored.record.mode):
            continue
        record = stored.record
        if not record.mode:
            whose = f"service/{name} serves for other owners; rename this one"
        elif record.version is None and not record.active and scene.holder(name) is None:
            continue  # a deployment that ended early left it, and nothing stands of it
        else:
            whose = f"belongs to {_project(record.project)}; rename it"
        raise Conflict(
            f"services.{name}: {whose}, or set x-farmd.prefix at the top of the file",
            field=f"services.{name}",
        )


def unless_held(call: Call, scene: Scene, names: Sequence[str]) -> None:
    """Refuse services that another deployment changes now, unless it waits for a person, or is forced.

    Raises:
        Locked: naming the holder, since when, and how far it is.
        InputInvalid: it is forced without a reason.
    """
    if call.force and not call.reason:
        raise InputInvalid("reason: missing, expected why force is needed (--reason)", field="reason")
    for name in names:
        held = scene.holder(name)
        if held is None or (not held.stored.record.draft and (held.resting or call.force)):
            continue
        record = held.stored.record
        raise Locked(
            f"service {name!r} is changed by {told(held)}",
            holder=f"deployments/{record.id}",
            since=rfc3339(record.at),
            progress=progress(held),
            hint="it is submitted right now; try again"
            if record.draft
            else f"farmctl deployment status {record.name}; wait, or pause it, or take over with"
            " --force --reason TEXT",
        )


def taken_over(scene: Scene, names: Collection[str]) -> dict[str, Holding]:
    """The services that come from other deployments, with these."""
    held = {name: scene.holder(name) for name in sorted(names)}
    return {name: holder for name, holder in held.items() if holder is not None}


def superseding(call: Call, scene: Scene, ident: str, names: Collection[str]) -> tuple[Operation, ...]:
    """What takes services from their deployments, which leave them as they are then."""
    taken = taken_over(scene, names)
    store = DEPLOYMENT.records(call.client, call.keys)
    found = []
    for holder in {held.stored.record.id: held for held in taken.values()}.values():
        record = holder.stored.record
        goals = [
            replace(goal, superseded=ident) if goal.name in taken and not goal.superseded else goal
            for goal in record.goals
        ]
        found.append(store.replace(holder.stored, replace(record, goals=goals)))
    return tuple(found)


def told(held: Holding) -> str:
    """A deployment for people: who began it and when, and how far it is."""
    record = held.stored.record
    return (
        f"deployment {record.name} of {record.by or 'unknown'} since {rfc3339(record.at)}: {progress(held)}"
    )


def progress(held: Holding) -> str:
    """How far a deployment is, in words."""
    if held.stored.record.draft:
        return "draft"
    if held.state is not None and held.state.halted:
        return f"halted: {held.state.halted}"
    if held.stored.record.ask != "run":
        return {"pause": "paused", "rollback": "rolling back"}[held.stored.record.ask]
    return held.status.progress if held.status is not None else "no farm has reported yet"


def _project(name: str) -> str:
    return f"project {name}" if name else "no project"
