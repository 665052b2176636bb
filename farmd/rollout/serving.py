"""The services of a rollout: whose pods routers find while it lasts, and after it.

Old and new serve side by side from its beginning to its end; in a blue-green rollout the new version serves
once the old one does not, by one write. What must never break: a service always names an owner that serves,
and each change of ``active`` is in the transaction of the change that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farmd.commands.mutation import Call
from farmd.rollout.model import Action
from store import manifests
from store.entry import Stored
from store.errors import InputInvalid
from store.families import RCS
from store.keys import Keys, valid_name
from store.manifests import Manifest
from store.operations import Operation
from store.policies import Policy
from store.ports import KeyReader
from store.rcs import ReplicationController
from store.rollouts import Ending, Rollout
from store.services import NOUN, Service, ServiceStore, naming, reference

# They share the transaction of a rollout's end with everything that ends. What people made by hand beyond
# that is written before it.
MOST_SERVICES, MOST_CHANGED = 10, 30

Changes = Sequence[tuple[Stored[Service], list[str]]]
"""Services as they were read, and what they are to name."""


# -- pure ---------------------------------------------------------------------------------------
def beside(active: Sequence[str], old: str, new: str) -> list[str]:
    """The owners that serve while both versions do: the new one right after the old one."""
    return _unique(
        each
        for ref in [*active, *(() if old in active else (old,))]
        for each in ((ref, new) if ref == old else (ref,))
    )


def instead(active: Sequence[str], gone: str, stays: str) -> list[str]:
    """One serves in place of another."""
    return _unique([stays if ref == gone else ref for ref in active])


def switches(active: Sequence[str], gone: str, stays: str) -> list[str]:
    """One serves in place of another, also where that was not named."""
    return _unique([*instead(active, gone, stays), stays])


def begins(active: Sequence[str], old: str, new: str, policy: Policy) -> list[str]:
    """Who serves while a rollout lasts; before a switch only the old version.

    Where the version that it goes to serves already, and the other does not, that stays so.
    """
    if new in active and old not in active:
        return list(active)
    switches = policy.strategy == "blue-green"
    return _unique([*active, old]) if switches else beside(active, old, new)


def ends(active: Sequence[str], rollout: Rollout, outcome: Ending, stay: Iterable[str]) -> list[str]:
    """Who serves after the end; ``stay`` are the controllers that exist then."""
    old, new = sides(rollout)
    there = {reference(RCS.name, rc) for rc in stay}
    if outcome == "done" and new not in active:
        active = beside(active, old, new)
    elif outcome == "reverted" and not rollout.started_to:
        active = instead(active, new, old)
    left = [ref for ref in active if ref in there or ref not in (old, new)]
    return left or [ref for ref in (old, new) if ref in there]


def sides(rollout: Rollout) -> tuple[str, str]:
    """Both controllers, as services name them."""
    return reference(RCS.name, rollout.old), reference(RCS.name, rollout.new)


def _unique(refs: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(refs))


# -- at the beginning ---------------------------------------------------------------------------
async def join(
    call: Call, rollout: Rollout, new: ReplicationController, name: str, pod: Manifest | None
) -> tuple[str, tuple[Operation, ...]]:
    """The service that a rollout switches, and the writes that let services name both versions.

    That is the service of this ``name``, which is made where there is none, else the first that names one of
    the controllers; empty: none does. ``pod`` is the new manifest where that may not be stored yet.

    Raises:
        InputInvalid: the new version lacks a port that a service names; or there are too many services.
    """
    store, (old, ref) = ServiceStore(call.client, call.keys), sides(rollout)
    found = naming(await store.list(), old, ref)
    named, index = await store.named(name) if name else (None, 0)
    found = [*([named] if named is not None else []), *(each for each in found if each.record.name != name)]
    if not found and not name:
        return "", ()
    if len(found) > MOST_SERVICES:
        raise InputInvalid(
            f"rollout.service: {len(found)} services name {rollout.name}, expected at most {MOST_SERVICES}",
            field="service",
        )
    manifest = pod or await manifests.read(call.client, call.keys, new.manifest)
    for each in found:
        _check_port(each.record, manifest)
    changed = [store.activate(each, begins(each.record.active, old, ref, rollout.policy)) for each in found]
    if not name or named is not None:
        return found[0].record.id, tuple(changed)
    made = Service(
        id=call.ids.new(),
        name=valid_name(name, "service"),
        port=_only_port(name, manifest),
        active=begins((), old, ref, rollout.policy),
        created=call.clock.now(),
    )
    return made.id, (*changed, *store.create(made, name_index=index))


def _check_port(service: Service, manifest: Manifest) -> None:
    if service.port not in manifest.ports:
        found = ", ".join(sorted(manifest.ports)) or "none"
        text = f"pod.ports: found {found}, expected {service.port!r} too: {NOUN} {service.name} names it"
        raise InputInvalid(text, field="pod.ports")


def _only_port(name: str, manifest: Manifest) -> str:
    if len(manifest.ports) != 1:
        found = ", ".join(sorted(manifest.ports)) or "none"
        raise InputInvalid(
            f"rollout.service: found the ports {found}, expected one, to make {NOUN} {name} of it",
            field="service",
            hint=f"farmctl {NOUN} create {name} --port PORT first",
        )
    return next(iter(manifest.ports))


# -- while it lasts -----------------------------------------------------------------------------
async def to_turn(client: KeyReader, keys: Keys, rollout: Rollout, action: Action, *, back: bool) -> Changes:
    """What a turn changes of services: a switch all, the rollout's own as the last one, and a take those that
    were made since the beginning.

    Raises:
        NotFound, RecordInvalid: the rollout's own service is gone, so nothing can be switched.
    """
    if action not in ("take", "switch"):
        return []
    (old, new), found = sides(rollout), await _found(client, keys, rollout)
    if action == "take":
        wanted = [(each, begins(each.record.active, old, new, rollout.policy)) for each in found]
        return [(each, active) for each, active in wanted if active != each.record.active]
    own = await ServiceStore(client, keys).get(rollout.service)
    gone, stays = (new, old) if back else (old, new)
    switching = [*(each for each in found if each.key != own.key), own]
    return [(each, switches(each.record.active, gone, stays)) for each in switching]


async def to_end(
    client: KeyReader, keys: Keys, rollout: Rollout, outcome: Ending, stay: Iterable[str]
) -> Changes:
    """What the end changes of services; ``stay`` are the controllers that exist then."""
    there, found = list(stay), await _found(client, keys, rollout)
    return [(each, ends(each.record.active, rollout, outcome, there)) for each in found]


async def _found(client: KeyReader, keys: Keys, rollout: Rollout) -> list[Stored[Service]]:
    """The services that name one of the controllers, as they are now; what does not decode is left alone."""
    return naming(await ServiceStore(client, keys).list(), *sides(rollout))


def written(client: KeyReader, keys: Keys, changes: Changes) -> list[Operation]:
    """The operations of changes, each at the index at which its service was read."""
    store = ServiceStore(client, keys)
    return [store.activate(stored, active) for stored, active in changes]
