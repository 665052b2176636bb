"""``/nodes/NODE/pods/INSTANCE``, one pod; and ``/map``, every node with its pods."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiohttp import web

from farmd.farm.farm import Farm
from farmd.tables import manifests
from farmd.tables.model import clean, colour_of
from farmd.tables.pods import facts, usage_facts
from farmd.web import html
from farmd.web.visit import Visit
from store.errors import NotFound
from store.families import NODES
from store.reality import Glance, fails


async def one(visit: Visit) -> web.StreamResponse:
    """A pod, with the processes of the same name that outlive theirs."""
    node, instance = visit.request.match_info["node"], visit.request.match_info["instance"]
    nodes, call = visit.site.by_family[NODES.name], visit.site.call()
    with nodes.looking():
        await nodes.ready()
        found = await nodes.described(call, node)
        topic = visit.site.topic(f"/nodes/{node}")
        assert topic is not None
        version = topic.version
    rows = [row for table in found.shown.values() for row in table.rows if row.instance == instance]
    if not rows:
        raise NotFound(f"pod {node}/{instance} does not exist", kind="pods", id=f"{node}/{instance}")
    row = min(rows, key=lambda each: bool(each.gone))
    manifest, runs = await manifests.read(call, row.manifest)
    uses = await visit.site.usage.of_pods(call, [row])
    known = visit.site.usage.used([node]).get((node, instance))
    more = usage_facts(known, manifest) if known is not None else uses.facts
    told = [(title, clean(text)) for title, text in [*facts(row, runs, call.clock.now()), *more]]
    links = {"Node": f"/nodes/{node}", "Owner": html.of_item(row.owner_name)}
    return visit.page(
        "pod.html",
        title=f"Pod {node}/{instance}",
        path=nodes.path,
        list=nodes,
        pod=row,
        colour=colour_of("HEALTH", row.health),
        facts=[(title, text, links.get(title, "")) for title, text in told],
        uses=uses,
        live=f"/nodes/{node}",
        at=version,
    )


# ``/map``: every node with its pods, one mark each, coloured by what their agents say.


MOST_NODES, MOST_PODS = 300, 200
_WORDS = {"green": "healthy", "yellow": "not yet", "red": "failing", "plain": "unknown"}


class Node(NamedTuple):
    """One node: its state, and the colour of each of its pods; ``more`` are pods that are not drawn."""

    name: str
    state: str
    colour: str
    pods: list[str]
    more: int

    @property
    def told(self) -> str:
        """Such as ``3 healthy, 1 failing``."""
        counts = {colour: self.pods.count(colour) for colour in _WORDS}
        return (
            ", ".join(f"{count} {_WORDS[colour]}" for colour, count in counts.items() if count) or "no pods"
        )


async def shown(visit: Visit) -> web.StreamResponse:
    """Nodes in trouble first, then those with most pods in trouble."""
    nodes = visit.site.by_family[NODES.name]
    with nodes.looking():
        await nodes.ready()
        topic = visit.site.topic("/map")
        assert topic is not None
        version = topic.version
        found = [_node(visit.site.farm, line.row) for line in nodes.lines()]
    found.sort(key=lambda each: (each.colour != "red", -each.pods.count("red"), each.name))
    return await visit.drawn(
        "map.html",
        title="Map",
        path="map",
        nodes=found[:MOST_NODES],
        more=max(0, len(found) - MOST_NODES),
        live="/map",
        at=version,
    )


def _node(farm: Farm, row: Any) -> Node:
    view = farm.fleet.view().get(row.name)
    places = sorted(view.pods) if view is not None else []
    known = farm.fleet.present(row.name)
    colours = [_colour(farm, (row.name, instance)) if known else "plain" for instance in places]
    colours.sort(key=list(_WORDS).index, reverse=True)
    colour = colour_of("STATE", row.state) or "plain"
    return Node(row.name, row.state, colour, colours[:MOST_PODS], max(0, len(colours) - MOST_PODS))


def _colour(farm: Farm, place: tuple[str, str]) -> str:
    seen = farm.fleet.reality(place)
    if not isinstance(seen, Glance):
        return "plain"
    if fails(seen):
        return "red"
    return "green" if seen.state == "passing" and seen.phase in ("running", "done") else "yellow"
