"""What to change in the catalogue for one service: pure.

What must never break: only what bears the cluster's mark is changed, and a pod that is not an endpoint any
more is critical, or gone, before anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from farmd.catalog.facts import CatalogPod, Plan, Snapshot
from farmd.runtime.wake import earliest
from farmd.services import endpoints
from farmd.services.endpoints import Endpoint, Sighting
from farmd.work.model import Blocked
from store import catalog
from store.catalog import Change, Node, Standing, alike, same
from store.presence import parts

VERSION_DIGITS = 12
FOREIGN_SECONDS = 10.0
PASSING, ABSENT, FAILING = "available", "the agent of its node is absent", "not available"


def pods(
    cluster: str, service: str, seen: Iterable[Sighting], standing: dict[str, Standing], new: Collection[str]
) -> tuple[CatalogPod, ...]:
    """The pods that the catalogue should name: all endpoints, and pods that it names already and that are no
    longer endpoints.

    ``new`` are the owners whose version a rollout brings. The endpoints of before are those that the
    catalogue names, so that a farm which takes the service over empties no answer, either.
    """
    sightings = list(seen)
    before = [_endpoint(cluster, each) for each in standing.values() if _passes(each)]
    serving = {each.pod: each for each in endpoints.serving(sightings, before)}
    found = []
    for each in sightings:
        told = each.endpoint
        ident = catalog.service_id(cluster, service, told.node, told.instance)
        there, here = standing.get(ident), serving.get(told.pod)
        if here is None and there is None:
            continue  # it never served
        where = here or told
        found.append(
            CatalogPod(
                told.node,
                told.instance,
                where.address or (there.service.address if there else ""),
                where.port or (there.service.port if there else 0),
                told.owner,
                each.manifest[:VERSION_DIGITS],
                passing=here is not None,
                output=PASSING if here is not None else ABSENT if each.unknown else FAILING,
                canary=told.owner in new,
            )
        )
    return tuple(found)


def members(
    cluster: str,
    service: str,
    present: Mapping[str, tuple[str, str]],
    absent: Collection[str],
    standing: Mapping[str, Standing],
) -> tuple[CatalogPod, ...]:
    """The farms, or the agents, that the catalogue should name.

    ``present``: address and version of each; ``absent`` are those that may come back, whose entries stay.
    """
    found = []
    for name, (address, version) in present.items():
        at = parts(address)
        if at.hostname:
            port = at.port or (443 if at.scheme == "https" else 80)
            meta = {"scheme": at.scheme, "node": name, "version": version}
            found.append(CatalogPod(name, service, at.hostname, port, "", output=PASSING, meta=meta))
    for entry in standing.values():
        _, name, instance = catalog.parts(cluster, entry.service.id) or ("", "", "")
        if name in absent and name not in present:
            was, meta = entry.service, dict(entry.service.meta or {})
            found.append(CatalogPod(name, instance, was.address, was.port, "", "", False, ABSENT, meta=meta))
    return tuple(found)


def decide(seen: Snapshot) -> Plan:
    """Write each entry that differs and remove those of pods that are gone; what serves no more is first."""
    asked = seen.service.catalog
    if asked is None:
        return Plan()
    members = seen.service.id in catalog.MEMBERS
    if not members and (wrong := catalog.mistake(seen.service.name, asked)):
        return Plan(blocked=Blocked("catalog", wrong))
    wanted = {each.service.id: each for each in (_entry(seen, pod) for pod in seen.pods)}
    used = {each.node for each in (*wanted.values(), *seen.standing.values())}
    foreign = {name for name in used if _foreign(seen.cluster, seen.nodes.get(name))}
    changes = list[Change]()
    written = set[str]()
    for ident in sorted(wanted.keys() | seen.standing.keys()):
        before, after = seen.standing.get(ident), wanted.get(ident)
        if foreign & {each.node for each in (before, after) if each is not None}:
            if before is not None and not _stays(before, after):
                changes.append(Change(before, None))  # nobody else would say that it serves no more
            continue
        address = "" if after is None or after.node in written else _address(seen, after)
        if (
            address
            or before is None
            or after is None
            or not (same(before, after) and alike(before.check, after.check))
        ):
            changes.append(Change(before, after, address))
            written.update({after.node} if after is not None else ())
    changes.sort(key=_urgency)
    due = earliest(seen.after, FOREIGN_SECONDS if foreign else None)
    return Plan(tuple(changes), tuple(sorted(foreign)), _taken(foreign), due)


def _urgency(change: Change) -> int:
    """Removals and what fails first: it must not be answered with."""
    return int(change.after is not None and (change.after.check is None or _passes(change.after)))


def _entry(seen: Snapshot, pod: CatalogPod) -> Standing:
    asked = seen.service.catalog
    assert asked is not None
    ident = catalog.service_id(seen.cluster, seen.service.id, pod.node, pod.instance)
    name, node = asked.name or seen.service.name, catalog.node_name(seen.cluster, pod.node)
    own = {"owner": pod.owner, "pod": pod.instance, "node": pod.node, "version": pod.version}
    own = own if pod.meta is None else dict(pod.meta)
    tags = asked.canary_tags if pod.canary and asked.canary_tags else asked.tags
    service = catalog.Service(ident, name, list(tags), pod.address, pod.port, {**asked.meta, **own})
    status = "passing" if pod.passing else "critical"
    return Standing(
        node, service, catalog.Check(node, catalog.check_id(ident), status, pod.output, ident, name)
    )


def _stays(before: Standing, after: Standing | None) -> bool:
    """Whether an entry on a foreign node still has the right address of its pod."""
    return after is not None and _passes(after) and same(before, after)


def _foreign(cluster: str, node: Node | None) -> bool:
    return node is not None and not catalog.owns(cluster, node)


def _address(seen: Snapshot, entry: Standing) -> str:
    """The address with which the entry's node must be written; empty: it stands so.

    A pod that does not serve may tell an address of before. Where farms and agents are reached is no word on
    where pods are.
    """
    node, fixed = seen.nodes.get(entry.node), seen.service.id in catalog.MEMBERS or not _passes(entry)
    if node is None or not (node.address == entry.service.address or fixed):
        return entry.service.address
    return "" if catalog.bears(seen.cluster, node) else node.address


def _taken(foreign: Collection[str]) -> Blocked | None:
    if not foreign:
        return None
    names = ", ".join(sorted(foreign)[:3])
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    return Blocked(
        "catalog",
        f"Consul's catalogue: found {names}{more} registered by somebody else, expected nodes with this"
        " cluster's mark: consul catalog nodes -detailed shows them",
    )


def _passes(entry: Standing) -> bool:
    return entry.check is not None and entry.check.status == "passing"


def _endpoint(cluster: str, entry: Standing) -> Endpoint:
    _, node, instance = catalog.parts(cluster, entry.service.id) or ("", "", "")
    owner = (entry.service.meta or {}).get("owner", "")
    return Endpoint(node, instance, owner, entry.service.address, entry.service.port)
