"""Services in bundles: each change is a deployment of one goal, which the verdict follows.

A service that only names pods has a form of document of its own (``farmd.services.document``), and changes at
once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from farmd.commands import difference, waiting
from farmd.commands.bundled import FoundRecord, Wish, Written, marked
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call, Change, Mutation, Scalar, guard, lock_told
from farmd.commands.waiting import Spells
from farmd.deploy import resolver
from farmd.deploy.commands import Deployment
from farmd.deploy.goals import version_of
from farmd.deploy.manifest import spec_of
from farmd.deploy.noun import owner_noun
from farmd.deploy.project import ResolvedServices
from farmd.deploy.scene import holding, told
from farmd.deploy.spec import ServiceSpec
from farmd.services import commands
from farmd.services import document as named
from farmd.services.document import NamedService, names_pods
from store import manifests
from store.canonical import builtins
from store.deployments import halted
from store.entry import Stored
from store.errors import NotFound, RecordInvalid
from store.services import KIND, NOUN, Service, ServiceStore, Version


class BundledService:
    """Services that deployments make, or that only name pods; see ``farmd.commands.bundled.Bundled``."""

    spec = ServiceSpec
    instead = NamedService
    noun = NOUN
    order = 1
    replaces = False

    def parse(self, document: Any, where: str) -> ServiceSpec | NamedService:
        if isinstance(document, Mapping) and names_pods(document):
            return named.parse(document, where)
        spec = resolver.service(document, where)
        resolver.check(spec)
        return spec

    def wish(self, document: Mapping[str, Any], ignore: Collection[str] = ()) -> Wish:
        spec = self.parse(document, "document")
        if isinstance(spec, ServiceSpec):
            spec = resolver.resolved(spec)
        return Wish(spec.name, spec, frozenset(document.keys() - {"name", *ignore}))

    async def find(self, call: Call, name: str) -> FoundRecord | None:
        stored, _ = await ServiceStore(call.client, call.keys).named(name)
        if stored is None:
            return None
        service: Service = stored.record
        if not service.mode:
            return self.seen(call, stored)
        held = await holding(call, {service.deployment})
        if held:
            return FoundRecord(stored, service.part_of, f"changed by deployment/{service.deployment[:8]}")
        return FoundRecord(stored, service.part_of, await lock_told(call, KIND, service.id))

    def seen(self, call: Call, stored: Stored[Any]) -> FoundRecord:  # noqa: ARG002
        service: Service = stored.record
        return FoundRecord(stored, service.part_of)

    def held(self, call: Call, found: FoundRecord, wish: Wish) -> FoundRecord:  # noqa: ARG002
        """A document never holds a service of the other form, whatever that service is part of."""
        if isinstance(wish.spec, NamedService) != bool(found.stored.record.mode):
            return found
        return found._replace(part_of="services of the other form: one has a container, one names pods")

    async def differs(
        self, call: Call, found: FoundRecord, wish: Wish
    ) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        service: Service = found.stored.record
        if isinstance(wish.spec, NamedService):
            if service.mode:
                return {"container": "deployed"}, {"pods": ", ".join(wish.spec.pods)}
            return await named.differs(call, found.stored, wish)
        before = service.version
        if before is None:
            return {"exists": False}, {"exists": True}
        after = await _asked(call, before, wish)
        if after is None:
            return {"container": "unreadable"}, {"container": wish.spec.container.image}
        return difference.fields(_flat(before), _flat(after), {"container": "manifest"})

    async def create(self, call: Call, wish: Wish) -> Mutation:
        if isinstance(wish.spec, NamedService):
            return await named.create(call, wish.spec)
        return await _deployed(call, ResolvedServices(services={wish.name: wish.spec}))

    async def update(self, call: Call, wish: Wish) -> Mutation:
        found = await self.find(call, wish.name)
        if found is None:
            raise NotFound(f"{NOUN} {wish.name!r} does not exist", kind=KIND, id=wish.name)
        if isinstance(wish.spec, NamedService):
            return await named.update(call, found.stored, wish)
        return await (await self._deployment(call, wish)).mutation()

    async def _deployment(self, call: Call, wish: Wish) -> Deployment:
        """The deployment of a service as it was released, with the stated fields as they are asked for."""
        stored = await ServiceStore(call.client, call.keys).find(wish.name)
        version = stored.record.version
        released = None if version is None else await _released(call, version)
        spec = wish.spec if released is None else _stated(wish, released)
        made = Deployment(call=call, wanted=ResolvedServices(services={wish.name: spec}))
        await made.plan()
        return made

    async def superseding(self, call: Call, wish: Wish) -> Mutation | None:
        """Put what a document asks for in place of what a deployment under way brings; None: nothing to do.

        Raises:
            Conflict, InputInvalid: it cannot take that place.
        """
        if isinstance(wish.spec, NamedService):
            return None
        made = await self._deployment(replaced(call, supersede=True), wish)
        holder = made.scene.holder(wish.name)
        if holder is None:
            return None
        coming = next(goal.wanted for goal in holder.stored.record.goals if goal.name == wish.name)
        if coming is not None:
            asked = await _asked(call, coming, wish)
            if asked is not None and _flat(asked) == _flat(coming):
                return None
        found = await made.mutation()
        details = (f"takes {wish.name} over from {told(holder)}",)
        return replaced(found, change=replaced(found.change, details=details))

    async def delete(self, call: Call, name: str) -> Mutation:
        if not (await ServiceStore(call.client, call.keys).find(name)).record.mode:
            return await commands.delete(call, name)
        return await _deployed(call, ResolvedServices(services={}, removed=[name]))

    async def mark(self, call: Call, name: str, to: str, wish: Wish | None = None) -> Mutation:  # noqa: ARG002
        store = ServiceStore(call.client, call.keys)
        stored = await store.find(name)
        service = stored.record
        held = await guard(call, KIND, service.id, f"{NOUN} {name!r}")
        wanted = replace(service, part_of=to, open=list(call.open))
        verb = "adopt" if to else "release"
        change = marked(Change(KIND, service.id, name, f"{NOUN}.{verb}"), service.part_of, to)
        return Mutation(change, (*held.operations, store.replace(stored, wanted)))

    async def written(self, call: Call) -> Written:
        listing = await ServiceStore(call.client, call.keys).list()
        found = Written({NOUN: []}, [], [error.message for error in listing.broken])
        for service in (stored.record for stored in listing.items if not stored.record.part_of):
            try:
                await self._add(call, service, found)
            except (NotFound, RecordInvalid) as error:
                found.left.append(f"{NOUN}/{service.name}: {error.message}")
        return found

    async def _add(self, call: Call, service: Service, to: Written) -> None:
        """Add one service to what is written.

        Raises:
            NotFound: what it refers to is gone. RecordInvalid: that does not decode.
        """
        if not service.mode:
            await self._add_name(call, service, to)
        elif service.project:
            told = f"comes with project {service.project}: farmctl deploy with its compose file"
            to.left.append(f"{NOUN}/{service.name}: {told}")
        elif service.version is None:
            to.left.append(f"{NOUN}/{service.name}: its first version is not released yet")
        else:
            body = await manifests.read(call.client, call.keys, service.version.manifest)
            spec = replace(spec_of(body, service.version), name=service.name)
            to.files[NOUN].append(builtins(spec))
            if service.catalog_off or service.catalog not in (None, service.version.catalog):
                to.commands.append(commands.published(service.name, service.catalog))

    async def _add_name(self, call: Call, service: Service, to: Written) -> None:
        """Add a service that only names pods: a document, or a command where an app makes the owners."""
        if why := (await named.verdict(call, service)).why:
            to.left.append(f"{NOUN}/{service.name}: {why}")
            return
        document = await named.document(call, service)
        owners = await commands.owners_of(call, service)
        if any(getattr(owner, "part_of", "") for owner in owners.values()):
            # An import comes before the apps are applied, and such a command after it.
            command = ["farmctl", NOUN, "create", service.name, "--port", service.port]
            to.commands.append([*command, *document["pods"]])
            published = service.catalog is not None
        else:
            to.files[NOUN].append(document)
            published = False
        if published or service.catalog_off:
            to.commands.append(commands.published(service.name, service.catalog))

    async def verdict(
        self, call: Call, found: FoundRecord, spells: Spells, wish: Wish | None = None
    ) -> Readiness:
        service: Service = found.stored.record
        if not service.mode:
            return await named.verdict(call, service)
        for held in (await holding(call, {service.deployment})).values():
            if why := halted(held.stored.record, held.state):
                return Readiness("failed", why)
            told = held.status.progress if held.status is not None else "no farm has looked at it yet"
            return Readiness("progressing", f"deployment/{held.stored.record.name}: {told}")
        last = service.history[0] if service.history else None
        if last is not None and last.result == "reverted":
            before = service.version
            asked = await _asked(call, before, wish) if before is not None and wish is not None else None
            if asked is None or _flat(asked) == _flat(last.version):
                return Readiness("failed", last.reason or "rolled back")
        if not service.active:
            return Readiness("progressing", "no pods yet")
        family, _, owner = service.active[0].partition("/")
        now = await waiting.look(call, owner_noun(family), owner, spells)
        return Readiness("ready" if now.converged else "progressing", waiting.describe(now))


def _stated(wish: Wish, released: ServiceSpec) -> ServiceSpec:
    """The service as it is, with the stated fields as its file wants them."""
    return replace(released, **{name: getattr(wish.spec, name) for name in wish.stated})


async def _asked(call: Call, before: Version, wish: Wish) -> Version | None:
    """What a service becomes by a document; None: the manifest that it has is gone."""
    released = await _released(call, before)
    return version_of(_stated(wish, released), released, before)[0] if released is not None else None


def _flat(version: Version) -> Version:
    """A version without the fields that follow from its manifest and its hook: earlier versions of farmd
    write only some of them.
    """
    return replace(version, image="", hook_manifest="")


async def _released(call: Call, version: Version) -> ServiceSpec | None:
    """What a service was released as; None: its manifest is gone."""
    try:
        return spec_of(await manifests.read(call.client, call.keys, version.manifest), version)
    except NotFound:
        return None


async def _deployed(call: Call, wanted: ResolvedServices) -> Mutation:
    made = Deployment(call=call, wanted=wanted)
    await made.plan()
    return await made.mutation()


BUNDLED: BundledService = BundledService()
