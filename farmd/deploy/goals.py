"""What a plan asks of the farms, service by service: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from farmd.commands.mutation import Call, Mutation
from farmd.commands.signing import Start
from farmd.commands.signing import bodies as manifest_bodies
from farmd.deploy.manifest import compiled, of_hook
from farmd.deploy.operations import ReplaceContainerOperation, RunContainerOperation
from farmd.deploy.owners import owner_name
from farmd.deploy.project import ProjectPlan, ResolvedServices
from farmd.deploy.scene import Scene
from farmd.deploy.spec import ContainerSpecStatus, ServiceSpec
from farmd.deploy.spec_diff import eval_container_spec_change
from farmd.kinds import KINDS
from store import codec, manifests
from store.deployments import KIND, Deployment, Goal
from store.errors import InputInvalid
from store.families import owners
from store.keys import Keys
from store.manifests import Manifest, canonical, digest, ensure
from store.operations import Operation
from store.ports import Ids
from store.services import KIND as SERVICES
from store.services import Service, ServiceStore, Version, reference, same


@dataclass(frozen=True, slots=True)
class Aim:
    """A goal, and the manifest of its pods; None: they keep theirs, or go."""

    goal: Goal
    manifest: Manifest | None = None


def aims(
    plan: ProjectPlan, wanted: ResolvedServices, scene: Scene, ids: Ids, *, recreate: bool = False
) -> list[Aim]:
    """A goal for each service that changes, those of its settings that no pod knows of included."""
    made = {each.volume.volume_name for each in plan.volumes}
    found = []
    for each in plan.services:
        name = each.service_name
        stored = scene.records.get(name)
        record = stored.record if stored is not None else None
        before = record.version if record is not None else None
        version, manifest = None, None
        if name not in wanted.removed:
            spec = plan.specs[name]
            version, manifest = version_of(spec, scene.released.get(name), before)
            mounts = made.intersection(volume.volume_name for volume in spec.mounted())
            if (
                not scene.lost(name)
                and same(version, before)
                and not each.operations
                and not each.short
                and not mounts
            ):
                continue
        goal = Goal(
            service=record.id if record is not None else ids.new(),
            name=name,
            owner=record.active[0] if record is not None and record.active else _owner(version, ids),
            wanted=version,
            previous=before,
            recreate=recreate,
            after=dict(wanted.after.get(name, {})),
            restored=name in wanted.restored,
        )
        found.append(Aim(goal, manifest))
    return found


def bodies(keys: Keys, aim: Aim) -> list[Operation]:
    """The manifests to which a goal refers, those of its pods and of its hook, written again (R24)."""
    manifest, wanted = aim.manifest, aim.goal.wanted
    if manifest is None:
        return []
    found = [canonical(manifest)]
    if wanted is not None and wanted.pre_deploy is not None:
        found.append(canonical(of_hook(manifest, wanted.pre_deploy)))
    return [ensure(keys, body) for body in found]


def joined(
    service: Service, deployment: Deployment, goal: Goal, manifest: Manifest | None, now: float
) -> Service:
    """A service that belongs to a deployment; one that has no pods yet becomes what the goal wants."""
    found = replace(service, deployment=deployment.id)
    if goal.wanted is None or goal.previous is not None or service.active:
        return found
    return replace(
        found,
        project=deployment.project,
        mode=goal.wanted.mode,
        labels=goal.wanted.labels,
        port=next(iter(manifest.ports), "") if manifest is not None else "",
        created=now,
    )


def settings_of(aims: Sequence[Aim]) -> dict[str, list[str]]:
    """The settings of services that change, other than those of their pods; by the service's name."""
    found = {aim.goal.name: _settings(aim.goal.previous, aim.goal.wanted) for aim in aims}
    return {name: names for name, names in found.items() if names}


def _settings(before: Version | None, after: Version | None) -> list[str]:
    if before is None or after is None:
        return []
    shown = {"manifest", "image", "mode", "replicas", "hook_manifest"}  # by the pods that come and go
    names = [name for name in Version.__struct_fields__ if name not in shown]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def version_of(
    spec: ServiceSpec, released: ServiceSpec | None, before: Version | None
) -> tuple[Version, Manifest | None]:
    """What a service is to be: the manifest of its pods stays where they fit, so that none is outdated."""
    manifest, version = compiled(spec)
    if released is None or before is None or before.manifest == version.manifest:
        return version, manifest
    if eval_container_spec_change(released, spec) is not ContainerSpecStatus.UP_TO_DATE:
        return version, manifest
    hook = before.hook_manifest if before.pre_deploy == version.pre_deploy else ""
    return replace(version, manifest=before.manifest, image=before.image, hook_manifest=hook), None


def _owner(version: Version | None, ids: Ids) -> str:
    """A new owner of the kind that fits: for a global service one with a pod on each node."""
    everywhere = version is not None and version.mode == "global"
    fit = (kind for kind in KINDS.values() if kind.owns_pods and not kind.ended)
    return reference(next(kind.family for kind in fit if kind.per_node is everywhere), ids.new())


# What a deployment lets start: the pods of its services, and their hooks (R32).


def starts(keys: Keys, mutation: Mutation) -> Iterator[Start]:
    """What a mutation lets start that submits a deployment."""
    found = {
        digest(body): codec.decode(Manifest, body, "manifest")
        for body in manifest_bodies(keys, mutation.operations)
    }
    for write in mutation.operations:
        if write.value and write.key.startswith(keys.tree(KIND)):
            for goal in codec.decode(Deployment, write.value, write.key).goals:
                yield from _goal(goal, found)


def planned(aims: list[Aim]) -> list[Start]:
    """What the goals of a plan let start, now or later."""
    found = {digest(canonical(aim.manifest)): aim.manifest for aim in aims if aim.manifest is not None}
    return [start for aim in aims for start in _goal(aim.goal, found)]


def starting(aims: list[Aim], plan: ProjectPlan) -> list[Start]:
    """What a plan starts itself: not what it only stops or leaves."""
    steps = (RunContainerOperation, ReplaceContainerOperation)
    names = {
        each.service_name for each in plan.services if any(isinstance(one, steps) for one in each.operations)
    }
    return planned([aim for aim in aims if aim.goal.name in names])


def _goal(goal: Goal, known: Mapping[str, Manifest]) -> Iterator[Start]:
    if goal.wanted is not None and (manifest := known.get(goal.wanted.manifest)) is not None:
        yield from of_version(goal.name, goal.owner.partition("/")[0], goal.wanted, manifest)


async def of_service(call: Call, name: str) -> list[Start]:
    """What a service that was deployed may start.

    Raises:
        NotFound: there is none, or its manifest is gone. InputInvalid: it was not deployed.
    """
    service = (await ServiceStore(call.client, call.keys).find(name)).record
    if service.version is None or not service.active:
        raise InputInvalid(
            f"service/{name}: nothing was deployed as it, so it has no pods of its own", field="target"
        )
    manifest = await manifests.read(call.client, call.keys, service.version.manifest)
    return list(of_version(service.name, service.active[0].partition("/")[0], service.version, manifest))


def owners_of(name: str) -> list[str]:
    """Whatever may own pods of a service of this name: ``<family>/<name>`` each."""
    return [*(f"{family.name}/{owner_name(name)}" for family in owners()), f"{SERVICES}/{name}"]


def of_version(service: str, family: str, version: Version, manifest: Manifest) -> Iterator[Start]:
    """What a version of a service lets start; ``family`` is that of the owner of its pods."""
    yield Start(f"{family}/{owner_name(service)}", version.manifest)
    if version.pre_deploy is not None:
        hook = digest(canonical(of_hook(manifest, version.pre_deploy)))
        yield Start(f"{SERVICES}/{service}", hook)
