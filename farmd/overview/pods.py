"""All pods, or those of an owner or a node, read from the store; also processes that outlive their pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from farmd import kinds
from farmd.overview.owners import records_of
from farmd.pods.state import PodState
from store import families
from store.entry import Stored
from store.keys import Keys, is_sentinel
from store.named import records
from store.nodes import NodeStore
from store.pods import Place, Pod
from store.reality import Exit, Intent, Reality, SidecarStatus
from store.several import several
from store.times import Time
from store.work import Work

if TYPE_CHECKING:
    from store.consul.client import ConsulClient
    from store.named import Record

# The row of one pod: its owner, its place, and what its node reports.
#
# An agent's last report counts only while the agent is present; otherwise the pod's health is unknown,
# neither healthy nor unhealthy (R21).

ABSENT = "its node's agent is absent"
GONE = "its pod was removed"


class PodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod.

    ``restart`` counts the restarts that were asked for, ``restarted`` is the counter that its node acted on
    (R28). ``leaving``: its process still serves, and is to stop (R39). ``gone``: the pod was removed, and its
    node has yet to say that its process ended.
    """

    owner: str
    owner_name: str
    node: str
    instance: str
    manifest: str
    labels: dict[str, str] = {}
    placed_at: Time = 0.0
    phase: str = "waiting"
    health: str = "unknown"
    healthy: bool = False
    leaving: bool = False
    health_since: Time = 0.0
    reason: str = ""
    preparing: str = ""
    started: Time = 0.0
    restarts: int = 0
    restart: int = 0
    restarted: int = 0
    pid: int = 0
    ports: dict[str, int] = {}
    exits: list[Exit] = []
    sidecars: dict[str, SidecarStatus] = {}
    gone: bool = False


def pod_row(owner: str, name: str, place: Place, state: PodState) -> PodRow:
    """The row of one pod; ``name`` is its owner's."""
    pod, reality = state.pod.record, state.reality
    row = PodRow(
        owner=owner,
        owner_name=name,
        node=place[0],
        instance=place[1],
        manifest=pod.manifest,
        labels=pod.labels,
        placed_at=pod.at,
        restart=0 if state.intent is None else state.intent.record.restart,
        reason=ABSENT if state.absent else "",
    )
    if not isinstance(reality, Reality):
        return row
    row = msgspec.structs.replace(
        row,
        phase=_phase(state, reality),
        started=reality.started,
        restarts=reality.restarts,
        restarted=reality.restart,
        pid=reality.pid,
        ports=reality.ports,
        exits=reality.exits,
        preparing="" if state.absent else reality.preparing,
        sidecars=reality.sidecars,
    )
    if state.absent:
        return row
    return msgspec.structs.replace(
        row,
        health=reality.health.state,
        health_since=reality.health.since,
        healthy=state.healthy,
        leaving=state.leaving,
        reason=reality.reason or reality.health.reason,
    )


def _phase(state: PodState, reality: Reality) -> str:
    """What its node does with it; until the node has acted on its intent, what it has yet to do."""
    if reality.manifest != state.pod.record.manifest:
        return "replacing"
    intent = state.intent
    behind = intent is not None and reality.intent < intent.index and reality.restart < intent.record.restart
    return "restarting" if behind else reality.phase


def gone_row(place: Place, reality: Reality, name: str, *, heard: bool) -> PodRow:
    """The row of a process that a node still runs, by its last report."""
    return PodRow(
        owner=reality.owner,
        owner_name=name,
        node=place[0],
        instance=place[1],
        manifest=reality.manifest,
        phase=reality.phase,
        started=reality.started,
        restarts=reality.restarts,
        pid=reality.pid,
        ports=reality.ports,
        exits=reality.exits,
        reason=f"{GONE}; {ABSENT}" if not heard else GONE,
        gone=True,
    )


T = TypeVar("T", bound=msgspec.Struct)

_MANY_NODES = 16


class Pods(msgspec.Struct, frozen=True):
    """Rows by node, instance and owner, and one line for each record that does not decode."""

    rows: list[PodRow]
    broken: list[str]

    @property
    def placed(self) -> list[PodRow]:
        """The pods, without processes that outlive theirs."""
        return [row for row in self.rows if not row.gone]


async def pods(client: ConsulClient, keys: Keys, of: Record | None = None) -> Pods:
    """All pods, or those of one owner.

    Processes whose pods were removed are listed with all pods, and with those of an owner that is being
    deleted, whose record waits for them.
    """
    listing = await records(client, keys.tree("pods") if of is None else keys.pods(of.id), Pod)
    broken = listing.mistakes
    placed: dict[tuple[str, str, str], Stored[Pod]] = {}
    for stored in listing.items:
        try:
            placed[keys.pod_parts(stored.key)] = stored
        except ValueError:
            broken.append(f"{stored.key}: expected pods/<owner>/<node>/<instance>")
    everywhere = of is None or of.deleting
    nodes = None if everywhere else {node for _, node, _ in placed}
    realities = await _realities(client, keys, nodes, broken) if placed or everywhere else {}
    intents = await _intents(client, keys, nodes, broken) if placed else {}
    present = await _present(client, keys) if realities or placed else frozenset()
    owner = "" if of is None else of.id
    names = {of.id: _title(of)} if of is not None else await _names(client, keys, {key[0] for key in placed})
    left = {at: each for at, each in realities.items() if everywhere and owner in {"", each.record.owner}}
    return Pods(_rows(placed, realities, intents, present, names, left), broken)


async def pods_of_node(
    client: ConsulClient,
    keys: Keys,
    node: str,
    placed: Mapping[tuple[str, str, str], Stored[Pod]],
    names_of: Callable[[set[str]], Awaitable[Mapping[str, str]]],
    *,
    present: bool,
) -> Pods:
    """The pods of one node and the processes that outlive theirs; it reads the node's own records alone.

    The caller knows what is ``placed`` there, as owner, node and instance, the names of owners by their ids,
    and whether the node's agent is ``present``.
    """
    broken: list[str] = []
    realities = await _realities(client, keys, {node}, broken)
    intents = await _intents(client, keys, {node}, broken)
    names = await names_of(
        {key[0] for key in placed} | {stored.record.owner for stored in realities.values()}
    )
    here = frozenset({node} if present else ())
    return Pods(_rows(placed, realities, intents, here, names, realities), broken)


def _rows(
    placed: Mapping[tuple[str, str, str], Stored[Pod]],
    realities: Mapping[Place, Stored[Reality]],
    intents: Mapping[Place, Stored[Intent]],
    present: frozenset[str],
    names: Mapping[str, str],
    left: Mapping[Place, Stored[Reality]],
) -> list[PodRow]:
    """The rows of pods, and of those processes in ``left`` that have none."""
    rows = [
        pod_row(owner, names.get(owner, ""), place, _state(owner, place, pod, realities, intents, present))
        for (owner, *where), pod in placed.items()
        for place in [(where[0], where[1])]
    ]
    rows += [
        gone_row(place, reality, names.get(reality.owner, ""), heard=place[0] in present)
        for place, reality in ((place, stored.record) for place, stored in left.items())
        if (reality.owner, *place) not in placed
    ]
    return sorted(rows, key=lambda row: (row.node, row.instance, row.owner_name, row.owner))


async def states(client: ConsulClient, keys: Keys, of: Record) -> dict[Place, PodState]:
    """The pods of one owner as plans see them, with drained and lost nodes; what does not decode is left out.

    How long a pod is healthy only the farms know: here a healthy one counts as available.
    """
    placed: dict[Place, Stored[Pod]] = {}
    for pod in (await records(client, keys.pods(of.id), Pod)).items:
        with suppress(ValueError):
            _, *where = keys.pod_parts(pod.key)
            placed[where[0], where[1]] = pod
    nodes = {node for node, _ in placed}
    realities, intents = await _realities(client, keys, nodes, []), await _intents(client, keys, nodes, [])
    present, given_up, drains = await _present(client, keys), await lost(client, keys), {}
    for node, stored in (await NodeStore(client, keys).list()).items.items():
        drains[node] = stored.node.record.drain if stored.node is not None else None
    found = {}
    for place, pod in placed.items():
        drain = drains.get(place[0])
        found[place] = msgspec.structs.replace(
            _state(of.id, place, pod, realities, intents, present),
            lost=given_up.get(place[0]),
            draining="" if drain is None else "forced" if drain.ignores_floor else "gentle",
            retained=drain is None,
        )
    return found


async def lost(client: ConsulClient, keys: Keys) -> dict[str, float]:
    """The nodes that are given up, and since when (R21); what does not decode is unknown, and so not lost."""
    found = (await records(client, keys.work("nodes", ""), Work)).named
    return {node: work.record.lost_since for node, work in found.items() if work.record.lost_since > 0}


def _state(
    owner: str,
    place: Place,
    pod: Stored[Pod],
    realities: Mapping[Place, Stored[Reality]],
    intents: Mapping[Place, Stored[Intent]],
    present: frozenset[str],
) -> PodState:
    """The state of one pod; a reality of another owner does not count."""
    found = realities.get(place)
    reality = found.record if found is not None and found.record.owner in ("", owner) else None
    return PodState(pod, intents.get(place), reality, absent=place[0] not in present)


async def _present(client: ConsulClient, keys: Keys) -> frozenset[str]:
    """The nodes whose agents are present."""
    page = await client.keys(keys.tree("agents"))
    return frozenset(keys.last_part(key) for key in page.items if not is_sentinel(key))


async def _realities(
    client: ConsulClient, keys: Keys, wanted: set[str] | None, broken: list[str]
) -> dict[Place, Stored[Reality]]:
    """The realities of the nodes, of all for None."""
    prefixes = _prefixes(wanted, keys.realities, keys.tree("reality"))
    found = await _records(client, keys, "reality", prefixes, Reality, broken)
    return {keys.reality_parts(one.key): one for one in found}


async def _intents(
    client: ConsulClient, keys: Keys, wanted: set[str] | None, broken: list[str]
) -> dict[Place, Stored[Intent]]:
    """The intents of the nodes, of all for None."""
    prefixes = _prefixes(wanted, keys.intents, keys.tree("intent"))
    found = await _records(client, keys, "intent", prefixes, Intent, broken)
    return {keys.intent_parts(one.key): one for one in found}


def _prefixes(wanted: set[str] | None, of_node: Callable[[str], str], whole: str) -> list[str]:
    """One prefix for each node, or the whole tree where that is cheaper."""
    if wanted is None or len(wanted) > _MANY_NODES:
        return [whole]
    return [of_node(node) for node in sorted(wanted)]


async def _records(
    client: ConsulClient, keys: Keys, family: str, prefixes: Sequence[str], kind: type[T], broken: list[str]
) -> list[Stored[T]]:
    found = list[Stored[T]]()
    for listing in await several(partial(records, client, kind=kind), prefixes):
        broken += listing.mistakes
        for stored in listing.items:
            if families.well_formed(keys, family, stored.key):
                found.append(stored)
            else:
                broken.append(f"{stored.key}: no record of {family} has such a key")
    return found


async def _names(client: ConsulClient, keys: Keys, used: set[str]) -> dict[str, str]:
    """Names of owners by id, and of those among the ``used`` that own pods only for a while."""
    found = {
        stored.record.id: _title(stored.record)
        for family in families.owners()
        for stored in (await records_of(client, keys, family).list()).items
    }
    for family in families.actors() if used - found.keys() else ():
        listing = await records_of(client, keys, family).list()
        found |= {each.record.id: kinds.title(family.name, each.record.name) for each in listing.items}
    return found


def _title(owner: Record) -> str:
    return kinds.listed(families.of(owner).name, owner.name)
