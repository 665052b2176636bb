"""The JSON API under ``/v1``: the page's lists and items, the audit log, and explanations, for programs.

``farmd.web.openapi`` describes it. Fields are only added under one version. A list that is asked for with the
``index`` of an earlier answer is answered once it changed, like Consul's blocking queries.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from farmd.runtime.wake import Wake, wait
from farmd.tables.manifests import without_values
from farmd.web import audit, explaining, html, openapi, paging
from farmd.web.connections import parked
from farmd.web.lists import ItemList
from farmd.web.services import INDEX_HEADER, WAIT_SECONDS, asked_index, asked_wait
from farmd.web.site import MOST_STREAMS
from farmd.web.visit import Visit, list_of, reader
from store.times import plain

FEW = 100
"""How many items are written without a thread."""


async def listed(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers`` and the other lists."""
    found, said = list_of(visit), visit.request.query
    asked = paging.query(said)
    index = asked_index(said.get("index", "0"))
    with found.looking():
        await found.ready()
        if index == found.bell.version:
            await _changed(visit, found, asked_wait(said.get("wait", f"{WAIT_SECONDS:g}")))
            reader(visit.site, visit.request)  # the token may have ended meanwhile
            await found.ready()
        version = found.bell.version
        shown = await paging.found(found.lines(), asked, found.table([]).columns)
        table = found.table([line.row for line in shown.lines])
    counts = {
        "matching": shown.matching,
        "total": shown.total,
        "states": shown.states if found.states else {},
        "next": shown.next,
        "index": version,
        "broken": list(table.broken),
    }

    def answer() -> web.Response:
        items = [table.plain(row) for row in table.rows]
        return _answer(f"{table.kind}List", {"items": items} | counts, version)

    # Values alone, and records are never changed in place.
    return await asyncio.to_thread(answer) if len(table.rows) > FEW else answer()


async def _changed(visit: Visit, found: ItemList, seconds: float) -> None:
    """Wait for a change of a list, for so long at most."""
    if len(visit.site.streams) >= MOST_STREAMS:
        raise web.HTTPTooManyRequests(text=f"{MOST_STREAMS} requests wait here already, ask later")
    wake = Wake()
    visit.site.streams.add(wake)
    try:
        with parked(visit.request), found.bell.listening(wake):
            await wait(wake, visit.site.farm.clock, seconds)
    finally:
        visit.site.streams.discard(wake)


async def item(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers/NAME``: the item, and beside it such as its pods, by what they are."""
    found = list_of(visit)
    with found.looking():
        await found.ready()
        described = await found.described(visit.site.call(), visit.request.match_info["name"])
    table = found.table([described.row])
    beside = {each.kind: [each.plain(row) for row in each.rows] for each in described.tables.values()}
    body = {"item": table.plain(described.row), "reason": described.reason, "beside": beside}
    return _answer(table.kind, body)


async def explained(visit: Visit) -> web.StreamResponse:
    """``GET /v1/controllers/NAME/explain``."""
    found = list_of(visit)
    if not explaining.explains(found):
        raise web.HTTPNotFound(text=f"there is nothing to explain of {found.many}")
    described = await found.described(visit.site.call(), visit.request.match_info["name"])
    tables = await explaining.explained(visit.site, found, described.row)
    items = [{"title": title, "rows": [table.plain(row) for row in table.rows]} for title, table in tables]
    return _answer("Explanation", {"name": described.name, "id": described.id, "items": items})


async def audited(visit: Visit) -> web.StreamResponse:
    """``GET /v1/audit``."""
    found = await audit.read(visit.site.farm, visit.site.audit.reading, visit.request.query)
    body = {"items": plain(found.records), "next": found.next, "broken": list(found.broken)}
    return _answer("AuditRecordList", body)


async def described(visit: Visit) -> web.StreamResponse:
    """``GET /v1/openapi.json``."""
    return html.as_json(openapi.document(visit.site.lists.values()))


def _answer(kind: str, body: dict[str, Any], index: int = 0) -> web.Response:
    headers = {INDEX_HEADER: str(index)} if index else {}
    return html.as_json({"apiVersion": "farmd/v1", "kind": kind, **without_values(body)}, headers=headers)
