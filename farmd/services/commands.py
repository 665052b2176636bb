"""The commands on services: create, change, delete, show them and their endpoints.

What must never break: a service names only owners that have its port, as far as its creation can tell, and
an edit respects its mutation lock (R13).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from farmd import overview
from farmd.commands.difference import fields
from farmd.commands.finding import look
from farmd.commands.mutation import Call, Change, Mutation, guard, registered
from farmd.commands.parts import refuse_managed, refuse_part
from farmd.kinds import KINDS, family_of, noun, title
from farmd.services.endpoints import Endpoint, Sighting
from store import codec, manifests, operations, presence
from store.catalog import mistake
from store.deployments import Deployment
from store.entry import Stored
from store.errors import Conflict, InputInvalid, Locked
from store.families import DEPLOYMENTS, FAMILIES, owners, owns_pods
from store.keys import valid_name
from store.locks import MutationLocker
from store.named import NamedRecords, Owner
from store.nodes import NodeStore
from store.operations import Operation
from store.services import KIND, NOUN, Catalog, Service, ServiceStore, reference

if TYPE_CHECKING:
    import aiohttp


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A service, and its owners as people write them; ``gone`` are those that do not exist.

    ``desired`` and ``healthy`` count their pods as they last reported them. ``deployment`` is the name of the
    deployment that changes it now.
    """

    record: Service
    serving: list[str]
    gone: list[str]
    desired: int = 0
    healthy: int = 0
    deployment: str = ""


async def create(
    call: Call, name: str, port: str, owners: Sequence[str], catalog: Catalog | None = None
) -> Mutation:
    """Create a service that these owners of pods serve, such as ``rc/web``.

    Raises:
        InputInvalid: a name that cannot be one, an owner without that port.
        NotFound: an owner does not exist.
        Conflict: another service has the name; or an owner is being deleted, or managed by a rollout.
    """
    valid_name(name, "name")
    valid_name(port, "port")
    found = {ref: await _owner(call, ref, port) for ref in dict.fromkeys(owners)}
    active = list(dict.fromkeys(reference(family, stored.record.id) for family, stored in found.values()))
    wanted = Service(
        id=call.ids.new(),
        name=name,
        port=port,
        active=active,
        created=call.clock.now(),
        catalog=catalog,
        part_of=call.part_of,
        open=list(call.open),
    )
    _refuse_catalog(wanted)
    store = ServiceStore(call.client, call.keys)
    existing, index = await store.named(name)
    if existing is not None:
        return _same(existing.record, wanted)
    told = [title(family, stored.record.name) for family, stored in found.values()]
    after = fields(msgspec.structs.replace(wanted, catalog=None), wanted, {})[1]
    change = _change(wanted, "create", after={"port": port, "active": ",".join(told), **after})
    there = [each for family, stored in found.values() for each in _touched(call, family, stored)]
    return Mutation(change, (await registered(call), *there, *store.create(wanted, name_index=index)))


async def change(
    call: Call,
    stored: Stored[Service],
    pods: Sequence[str] | None,
    wanted: Mapping[str, Any],
    told: tuple[dict[str, Any], dict[str, Any]],
) -> Mutation:
    """Change fields of a service that only names pods, and whose pods these are; None: that stays.

    ``told`` is the difference for the audit. The service is part of the caller's app afterwards.

    Raises:
        InputInvalid: an owner without that port, or what Consul or its DNS cannot take.
        NotFound: an owner does not exist. Conflict: one is being deleted, or managed by a rollout; or the
            service was deployed. Locked: somebody holds its mutation lock, or a deployment changes it.
    """
    record = stored.record
    if record.mode:
        hint = f"farmctl {NOUN} delete {record.name} deletes it with its pods"
        raise Conflict(f"{NOUN} {record.name!r} was deployed from a container", id=record.id, hint=hint)
    after = msgspec.structs.replace(record, **wanted, part_of=call.part_of, open=list(call.open))
    there: list[Operation] = []
    if pods is not None:
        found = [await _owner(call, ref, after.port) for ref in dict.fromkeys(pods)]
        there = [each for family, owner in found for each in _touched(call, family, owner)]
        active = list(dict.fromkeys(reference(family, owner.record.id) for family, owner in found))
        after = msgspec.structs.replace(after, active=active)
    _refuse_catalog(after)
    if after == record:
        return Mutation(_change(record, "update"))
    free = await _free(call, record)
    held = await guard(call, KIND, record.id, f"{NOUN} {record.name!r}")
    before, new = told
    audit = _change(record, "update", before={**before, **held.before}, after={**new, **held.after})
    store = ServiceStore(call.client, call.keys)
    return Mutation(audit, (*held.operations, *free, *there, store.replace(stored, after)))


async def publish(call: Call, target: str, catalog: Catalog | None) -> Mutation:
    """Say how a service is found in Consul's catalogue; None: it is not there, whatever farms register.

    Raises:
        InputInvalid: Consul or its DNS cannot take that. NotFound: there is no such service.
        Locked: somebody holds its mutation lock, or a deployment changes it.
    """
    store = ServiceStore(call.client, call.keys)
    stored = await store.find(target)
    await refuse_part(call, KIND, stored.record, {"catalog"})
    wanted = msgspec.structs.replace(stored.record, catalog=catalog, catalog_off=catalog is None)
    if (version := wanted.version) is not None and version.catalog is not None:
        # Its file speaks of it: the next deployment of that file shows the difference.
        wanted = msgspec.structs.replace(wanted, version=msgspec.structs.replace(version, catalog=catalog))
    _refuse_catalog(wanted)
    before, after = fields(stored.record, wanted, {})
    if not after and not before:
        return Mutation(_change(stored.record, "catalog"))
    free = await _free(call, stored.record)
    held = await guard(call, KIND, stored.record.id, f"{NOUN} {stored.record.name!r}")
    told = _change(stored.record, "catalog", before={**before, **held.before}, after={**after, **held.after})
    return Mutation(told, (*held.operations, *free, store.replace(stored, wanted)))


def published(name: str, catalog: Catalog | None) -> list[str]:
    """The command that says how a service is found in Consul's catalogue; None: not at all."""
    if catalog is None:
        return ["farmctl", NOUN, "catalog", name, "--off"]
    given = {"--as": [catalog.name] if catalog.name else [], "--tag": catalog.tags}
    given |= {"--meta": [f"{key}={value}" for key, value in catalog.meta.items()]}
    given |= {"--canary-tag": catalog.canary_tags}
    words = [word for option, values in given.items() for value in values for word in (option, value)]
    return ["farmctl", NOUN, "catalog", name, *words]


def _refuse_catalog(service: Service) -> None:
    if service.catalog is not None and (wrong := mistake(service.name, service.catalog, bool(service.port))):
        raise InputInvalid(wrong, field="catalog")


async def delete(call: Call, target: str) -> Mutation:
    """Delete a service; the pods stay.

    Raises:
        NotFound: there is none. Locked: somebody holds its mutation lock.
        Conflict: something switches it, such as a rollout; or a deployment made it.
    """
    store = ServiceStore(call.client, call.keys)
    stored = await store.find(target)
    if stands(stored.record):
        text = f"{NOUN} {stored.record.name!r} was deployed, and goes with its pods by a deployment"
        raise Conflict(text, id=stored.record.id)
    await refuse_part(call, KIND, stored.record)
    free = await _free(call, stored.record)
    # What begins after it was looked for writes the record of an owner.
    there = [await _as_it_is(call, ref) for ref in stored.record.active if owns_pods(ref.partition("/")[0])]
    await _refuse_switched(call, stored.record)
    held = await guard(call, KIND, stored.record.id, f"{NOUN} {stored.record.name!r}")
    before, after = {"exists": True, **held.before}, {"exists": False, **held.after}
    change = _change(stored.record, "delete", before=before, after=after, destructive=True)
    return Mutation(change, (*held.operations, *free, *there, *store.delete(stored)))


async def _refuse_switched(call: Call, service: Service) -> None:
    for family in FAMILIES.values():
        records = overview.records_of(call.client, call.keys, family) if family.switches else None
        for each in (await records.list()).items if records is not None else ():
            if getattr(each.record, family.switches) == service.id:
                raise Conflict(
                    f"{NOUN} {service.name!r} is used by {title(family.name, each.record.name)}",
                    id=service.id,
                    hint=f"farmctl {noun(family.name)} describe {each.record.name} shows its progress",
                )


async def _free(call: Call, service: Service) -> tuple[Operation, ...]:
    """A check that no deployment changes a service (R13).

    Raises:
        Locked: one does.
    """
    if not service.deployment:
        return ()
    key = call.keys.record(DEPLOYMENTS.name, service.deployment)
    if await call.client.read(key, mode="consistent") is not None:
        by = title(DEPLOYMENTS.name, service.deployment[:8])
        raise Locked(
            f"{NOUN} {service.name!r} is changed by {by}",
            holder=f"{DEPLOYMENTS.name}/{service.deployment}",
            hint=f"farmctl deployment rollback {service.deployment[:8]} takes it back",
        )
    return (operations.check_not_exists(key),)


def stands(service: Service) -> bool:
    """Whether a deployment made a service, or began to make its pods."""
    return bool(service.mode and (service.version is not None or service.active))


def _touched(call: Call, family: str, stored: Stored[Any]) -> tuple[Operation, Operation]:
    """An owner as it is, under a new index: its deletion that looked for services before is refused then."""
    free = MutationLocker(call.client, call.keys, family).unlocked(stored.record.id)
    return free, operations.cas(stored.key, stored.raw, stored.index, flags=stored.flags ^ 1)


async def _as_it_is(call: Call, ref: str) -> Operation:
    """A check that an owner is as it is now, or still gone."""
    family, _, owner = ref.partition("/")
    key = call.keys.record(family, owner)
    entry = await call.client.read(key)
    return operations.check_index(key, entry.modify_index) if entry else operations.check_not_exists(key)


async def rows(call: Call) -> tuple[list[ServiceRow], list[str]]:
    """All services, and one line for each that does not decode."""
    listing = await ServiceStore(call.client, call.keys).list()
    owners = {
        reference(family, each.record.id): (title(family, each.record.name), each)
        for family, found in (await overview.owners(call.client, call.keys)).items()
        for each in found.rows
    }
    deployments = await NamedRecords(
        call.client, call.keys, DEPLOYMENTS.name, Deployment, DEPLOYMENTS.name
    ).list()
    names = {each.record.id: each.record.name for each in deployments.items}
    found = [row_of(stored.record, owners, names) for stored in listing.items]
    return found, [error.message for error in listing.broken]


async def row(call: Call, target: str) -> ServiceRow:
    """One service by name, id or a prefix of its id.

    Raises:
        NotFound: there is none. Ambiguous: several ids begin so.
    """
    record = (await look(call, ServiceStore(call.client, call.keys), target)).record
    owners = {}
    for ref, owner in (await owners_of(call, record)).items():
        family = ref.partition("/")[0]
        records = overview.records_of(call.client, call.keys, FAMILIES[family])
        found = await overview.row(call.client, call.keys, records, owner.id)
        owners[ref] = (title(family, owner.name), found)
    entry = await call.client.read(call.keys.record(DEPLOYMENTS.name, record.deployment or "-"))
    names = {record.deployment: codec.decode(Deployment, entry.value, entry.key).name} if entry else {}
    return row_of(record, owners, names)


class PodsWatch:
    """The pods of one service, read from the store again and again.

    A pod is available once it was healthy for its owner's ``min_healthy_time``, as this process saw it (R22).
    For how long a pod was healthy before the first look nobody knows: it counts as available.
    """

    def __init__(self, call: Call, target: str) -> None:
        self._call = call
        self._target = target
        self._since: dict[object, float] | None = None

    async def look(self) -> tuple[Service, list[Sighting]]:
        """The service, and all pods of its owners.

        Raises:
            NotFound: there is no such service.
        """
        call = self._call
        service = (await look(call, ServiceStore(call.client, call.keys), self._target)).record
        hosts, now = await _hosts(call), call.clock.mono()
        found, since = list[Sighting](), dict[object, float]()
        for ref, owner in (await owners_of(call, service)).items():
            for pod in (await overview.pods(call.client, call.keys, owner)).placed:
                spell = (pod.owner, pod.node, pod.instance, pod.started, pod.health_since)
                if pod.healthy:
                    start = float("-inf") if self._since is None else self._since.get(spell, now)
                    since[spell] = start
                available = pod.healthy and now - since[spell] >= owner.min_healthy_time
                where = hosts.get(pod.node, ""), pod.ports.get(service.port, 0)
                endpoint = Endpoint(pod.node, pod.instance, ref, *where)
                found.append(Sighting(endpoint, available, pod.node not in hosts, pod.leaving))
        self._since = since
        return service, found


async def _hosts(call: Call) -> dict[str, str]:
    """The hosts of the nodes whose agents are present; one whose record does not decode has none."""
    listing = await NodeStore(call.client, call.keys).list()
    return {
        name: view.record.address or (presence.host(view.agent.address) if view.agent is not None else "")
        for name, view in listing.items.items()
        if view.agent is not None or view.unreadable
    }


async def owners_of(call: Call, service: Service) -> dict[str, Owner]:
    """The owners of a service that exist, as ``active`` names them."""
    found = dict[str, Owner]()
    for ref in service.active:
        family, _, owner = ref.partition("/")
        record = FAMILIES[family].record if owns_pods(family) else None
        entry = await call.client.read(call.keys.record(family, owner)) if record is not None else None
        if entry is not None and record is not None:
            found[ref] = codec.decode(record, entry.value, entry.key)
    return found


async def find_owner(call: Call, ref: str) -> tuple[str, Stored[Any]]:
    """An owner of pods by its name for people, ``rc/web`` or ``web``: its reference, and its record.

    Raises:
        InputInvalid: no such thing owns pods. NotFound: it does not exist.
    """
    word, slash, name = ref.rpartition("/")
    main = next(kind.family for kind in KINDS.values() if kind.main)
    family = family_of(word) if slash else main
    serving = [each.name for each in owners() if not KINDS[each.name].ended]
    if family not in serving:
        nouns = " or ".join(f"{KINDS[name].noun}/NAME" for name in serving)
        raise InputInvalid(f"{NOUN}: found {ref!r}, expected {nouns}", field="active")
    stored = await overview.records_of(call.client, call.keys, FAMILIES[family]).find(name)
    return reference(family, stored.record.id), stored


async def _owner(call: Call, ref: str, port: str) -> tuple[str, Stored[Any]]:
    """An owner of pods that has the port, and its family.

    Raises:
        InputInvalid: no such thing owns pods, or its pods have no such port.
        NotFound: it does not exist. Conflict: it is being deleted, a rollout manages it, or it is a part.
    """
    found, stored = await find_owner(call, ref)
    family = found.partition("/")[0]
    if stored.record.deleting:
        raise Conflict(f"{title(family, stored.record.name)} is being deleted", id=stored.record.id)
    # That of a service has its service, which ends with it.
    await refuse_part(call, family, stored.record, {"active"})
    # The pods of a managed one go to another owner, which the service would not name.
    await refuse_managed(call, family, stored.record)
    manifest = await manifests.read(call.client, call.keys, stored.record.manifest)
    if port not in manifest.ports:
        known = ", ".join(sorted(manifest.ports)) or "none, because its pods have no ports"
        text = f"port: found {port!r}, expected a port of {title(family, stored.record.name)}: {known}"
        raise InputInvalid(text, field="port")
    return family, stored


def _same(record: Service, wanted: Service) -> Mutation:
    """The result of creating a name that exists: nothing to do, or a conflict that names the differences."""
    before, after = fields(record, msgspec.structs.replace(wanted, labels=record.labels), {})
    if not before:
        return Mutation(_change(record, "create"))
    told = ", ".join(f"{name} ({before[name]} -> {after[name]})" for name in after)
    raise Conflict(
        f"{NOUN} {record.name!r} exists and differs: {told}",
        id=record.id,
        differs=list(after),
        hint=f"choose another name, or farmctl {NOUN} delete {record.name} first",
    )


def _change(record: Service, action: str, **fields: Any) -> Change:
    return Change(KIND, record.id, record.name, f"{NOUN}.{action}", **fields)


def row_of(
    record: Service, owners: Mapping[str, tuple[str, overview.Row[Any]]], deployments: Mapping[str, str]
) -> ServiceRow:
    """A service among owners by reference, each with its title, and names of deployments by id."""
    there = [owners[ref] for ref in record.active if ref in owners]
    return ServiceRow(
        record=record,
        serving=[name for name, _ in there],
        gone=[ref for ref in record.active if ref not in owners],
        desired=sum(row.desired for _, row in there),
        healthy=sum(getattr(row.status, "healthy", 0) for _, row in there),
        deployment=deployments.get(record.deployment, ""),
    )


# The endpoints of a service from farms, for those who watch on: a farm answers when they change.
#
# A watch that read the store again and again would cost Consul a read of all pods of the service every
# second. Any farm will do, since equal endpoints have one index on all of them.

WAIT_SECONDS = 30


class _Answer(msgspec.Struct):
    """The answer of ``GET /v1/services/NAME/endpoints``."""

    index: int
    items: tuple[Endpoint, ...]


class Farms:
    """Asks the farm that answered last, and another one where that is gone."""

    def __init__(self, call: Call, tls: ssl.SSLContext | bool = True) -> None:
        self._call = call
        self._tls = tls
        self._address = ""
        self._index = 0

    async def wait(self, service: str) -> tuple[Endpoint, ...] | None:
        """The endpoints once they are others than the last ones, or as they are after a while; None: no farm
        can tell.
        """
        import aiohttp  # 0.1 s, which lists do without

        limits = aiohttp.ClientTimeout(total=WAIT_SECONDS + 15, sock_connect=3)
        async with aiohttp.ClientSession(timeout=limits) as http:
            found = await self._ask(http, self._address, service) if self._address else None
            if found is not None:
                return found
            for farm in await overview.farms(self._call.client, self._call.keys):
                if farm.address and (found := await self._ask(http, farm.address, service)) is not None:
                    self._address = farm.address
                    return found
        self._address = ""
        return None

    async def _ask(self, http: aiohttp.ClientSession, farm: str, service: str) -> tuple[Endpoint, ...] | None:
        import aiohttp

        url = f"{presence.url(farm)}/v1/services/{service}/endpoints"
        params = {"index": str(self._index), "wait": f"{WAIT_SECONDS}s"}
        try:
            async with http.get(url, params=params, allow_redirects=False, ssl=self._tls) as response:
                if response.status != 200:
                    return None  # it does not know them yet, or knows no such service
                answer = msgspec.json.decode(await response.read(), type=_Answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError):
            return None  # another farm, or the store, tells
        self._index = answer.index
        return answer.items
