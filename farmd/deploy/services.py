"""Changes of single services that stand: each is a deployment, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from farmd.commands.mutation import Call
from farmd.commands.specs import check_count
from farmd.deploy.deployment import Deployment
from farmd.deploy.manifest import spec_of
from farmd.deploy.model import ServiceSpec
from farmd.deploy.project import ResolvedServices
from farmd.overview import titled_or_not
from store import manifests
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotFound
from store.services import KIND, NOUN, Revision, Service, ServiceStore, Version


async def scaled(call: Call, target: str, replicas: int) -> Deployment:
    """A service with another number of pods.

    Raises:
        InputInvalid: no number that can be, or a global service. Conflict: no deployment made it.
    """
    check_count(replicas, "replicas")
    service = (await deployed(call, target, "scaled", f"set-replicas NAME {replicas}")).record
    if service.mode == "global":
        raise InputInvalid(
            f"{NOUN} {service.name!r} is global: it has a pod on each machine, expected a replicated one",
            field="replicas",
        )
    return await _changed(call, service, lambda spec: replace(spec, replicas=replicas), fields={"replicas"})


async def rolled_back(call: Call, target: str, revision: int | None = None) -> Deployment:
    """A service as it was at a revision; None: at the last good one before the present.

    Raises:
        NotFound: its history has no such revision. Conflict: no deployment made it.
    """
    service = (await deployed(call, target, "rolled back", "")).record
    found = _revision(service, revision)
    return await _changed(call, service, lambda _: None, found.version)


async def removed(call: Call, services: Sequence[Service]) -> Deployment:
    """Services of one project that go, with their pods."""
    names = [each.name for each in services]
    made = Deployment(
        call=call, wanted=ResolvedServices(services={}, removed=names), project=services[0].project
    )
    await made.plan()
    return made


async def unused(call: Call, name: str) -> None:
    """Refuse the name of a service that exists.

    Raises:
        Conflict: it does.
    """
    found, _ = await ServiceStore(call.client, call.keys).named(name)
    if found is not None and (found.record.version is not None or found.record.active):
        raise Conflict(
            f"{NOUN} {name!r} exists",
            id=found.record.id,
            hint=f"farmctl deploy changes it, farmctl {NOUN} scale {name} N its count",
        )


async def deployed(call: Call, target: str, word: str, instead: str) -> Stored[Service]:
    """A service that a deployment made.

    Raises:
        NotFound: there is none. Conflict: people made it for owners of their own.
    """
    stored = await ServiceStore(call.client, call.keys).find(target)
    record = stored.record
    if record.mode and record.version is not None:
        return stored
    if record.mode:
        raise Conflict(
            f"{NOUN} {record.name!r} was never deployed to its end, so it cannot be {word}",
            id=record.id,
            hint="farmctl deployment list shows what is under way",
        )
    owners = (
        ", ".join([await titled_or_not(call.client, call.keys, ref) for ref in record.active]) or "no owner"
    )
    raise Conflict(
        f"{NOUN} {record.name!r} is a name for the pods of {owners}, which no deployment made: it cannot be"
        f" {word}",
        id=record.id,
        hint=f"farmctl rc {instead}" if instead else "change its owners instead",
    )


def _revision(service: Service, number: int | None) -> Revision:
    known = ", ".join(str(each.number) for each in service.history) or "none"
    for each in service.history:
        good = each.result == "done" and each.number < service.revision
        if each.number == number or (number is None and good):
            return each
    wanted = f"revision {number}" if number is not None else f"good revision before {service.revision}"
    raise NotFound(
        f"{NOUN} {service.name!r} has no {wanted}, found: {known}",
        kind=KIND,
        id=service.id,
        hint=f"farmctl {NOUN} history {service.name}",
    )


async def _changed(
    call: Call,
    service: Service,
    change: Callable[[ServiceSpec], ServiceSpec | None],
    version: Version | None = None,
    fields: Collection[str] | None = None,
) -> Deployment:
    """The deployment of a service as it is, or as a version, with a change, of ``fields`` or of any."""
    kept = version or service.version
    assert kept is not None
    spec = spec_of(await manifests.read(call.client, call.keys, kept.manifest), kept)
    restored = frozenset({service.name} if version is not None else ())
    wanted = ResolvedServices(services={service.name: change(spec) or spec}, restored=restored)
    made = Deployment(call=call, wanted=wanted, project=service.project, fields=fields)
    await made.plan()
    return made
