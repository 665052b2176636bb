"""Why nodes get a pod of an item or not, by the scheduler's own judgement over the farm's own copies."""

from __future__ import annotations

from typing import Any

from farmd.jobs.placing import request_of
from farmd.rollout import commands
from farmd.tables import rollouts as rollout_tables
from farmd.tables.model import Column, Table
from farmd.web.items import NamedList
from farmd.web.lists import ItemList
from farmd.web.site import Site
from scheduler import explain as words
from scheduler.decide import explanation
from scheduler.model import PlacementRequest
from store import jobs, manifests, rollouts
from store.times import plain


def explains(found: ItemList) -> bool:
    """Whether there is anything to explain of the items of a list."""
    if found.family in {jobs.KIND, rollouts.KIND}:
        return True
    return isinstance(found, NamedList) and found.noun.pods is not None


async def explained(site: Site, found: ItemList, row: Any) -> list[tuple[str, Table]]:
    """Tables by title."""
    assert isinstance(found, NamedList)
    farm, record = site.farm, row.record
    if found.family == rollouts.KIND:
        return [("Pods", rollout_tables.explanation(await commands.explain(site.call(), record.id)))]
    wanted: list[tuple[str, PlacementRequest]] = []
    if found.family == jobs.KIND:
        for kind in record.types:
            manifest = await manifests.read(farm.client, farm.keys, kind.manifest)
            wanted.append((f"One more {kind.name}", request_of(record, kind, manifest)))
    elif found.noun.pods is not None:
        manifest = await manifests.read(farm.client, farm.keys, record.manifest)
        wanted.append(("One more pod", found.noun.pods.request(record, manifest)))
    view = farm.fleet.view()
    return [(title, _nodes(words.rows(explanation(request, view)))) for title, request in wanted]


def _nodes(rows: list[words.Row]) -> Table:
    return Table(
        kind="Explanation",
        rows=rows,
        columns=(
            Column("NODE", lambda row: row.node),
            Column("STATE", lambda row: row.state),
            Column("RANK", lambda row: str(row.rank or "-")),
            Column("SCORE", lambda row: f"{row.score:.2f}" if row.rank else "-"),
            Column("REASON", lambda row: "; ".join(row.reasons) or _parts(row)),
        ),
        name=lambda row: f"node/{row.node}",
        plain=plain,
        empty="no nodes",
    )


def _parts(row: words.Row) -> str:
    return ", ".join(f"{name} {points:+.2f}" for name, points in row.parts.items())
