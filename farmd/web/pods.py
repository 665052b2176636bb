"""``/nodes/NODE/pods/INSTANCE``: one pod, what it runs, and how its last starts ended."""

from __future__ import annotations

from aiohttp import web

from farmd.tables import manifests
from farmd.tables.model import clean, colour_of
from farmd.tables.pods import facts
from farmd.web import addresses
from farmd.web.visit import Visit
from store.errors import NotFound
from store.families import NODES


async def one(visit: Visit) -> web.StreamResponse:
    """A pod, with the processes of the same name that outlive theirs."""
    node, instance = visit.request.match_info["node"], visit.request.match_info["instance"]
    nodes, call = visit.site.by_family[NODES.name], visit.site.call()
    with nodes.looking():
        await nodes.ready()
        found = await nodes.described(call, node)
    rows = [row for table in found.shown.values() for row in table.rows if row.instance == instance]
    if not rows:
        raise NotFound(f"pod {node}/{instance} does not exist", kind="pods", id=f"{node}/{instance}")
    row = min(rows, key=lambda each: bool(each.gone))
    _, runs = await manifests.read(call, row.manifest)
    told = [(title, clean(text)) for title, text in facts(row, runs, call.clock.now())]
    links = {"Node": f"/nodes/{node}", "Owner": addresses.of_item(row.owner_name)}
    return visit.page(
        "pod.html",
        title=f"Pod {node}/{instance}",
        path=nodes.path,
        list=nodes,
        pod=row,
        colour=colour_of("HEALTH", row.health),
        facts=[(title, text, links.get(title, "")) for title, text in told],
    )
