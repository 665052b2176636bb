"""What a deployment lets start: the pods of its services, and their hooks (R32)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farmd.commands.mutation import Call, Mutation
from farmd.commands.signing import Start, bodies
from farmd.deploy.goals import Aim
from farmd.deploy.hook_pods import of_hook
from farmd.deploy.operations import ReplaceContainerOperation, RunContainerOperation
from farmd.deploy.owners import owner_name
from farmd.deploy.project import ProjectPlan
from store import codec, manifests
from store.deployments import KIND, Deployment, Goal
from store.errors import InputInvalid
from store.families import owners
from store.keys import Keys
from store.manifests import Manifest, canonical, digest
from store.services import KIND as SERVICES
from store.services import ServiceStore, Version


def starts(keys: Keys, mutation: Mutation) -> Iterator[Start]:
    """What a mutation lets start that submits a deployment."""
    found = {
        digest(body): codec.decode(Manifest, body, "manifest") for body in bodies(keys, mutation.operations)
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
